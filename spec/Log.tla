---------------------------------- MODULE Log ----------------------------------
(* One log: a list of ledgers, its leaders, trims, sweeps and a reader, as `replog.protocol.chaining` and `dropping` build them.

A ledger is here what `Ledger` shows it to be: whoever recovers it closes it, then nothing more gets in, and all that its writer
confirmed is in it. What was sent and not yet confirmed may be in it or not. Rules are cited by the numbers of
docs/reference/protocol-rules.md. A client that takes no further step has crashed.

`Removed` names rules that are left out, to see that something breaks without them. *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Clients,     \* each takes the log over once, or again after it lost its compare-and-set
  LedgersMax,  \* ledgers that are ever created
  EntriesMax,  \* entries that are ever sent
  RollsMax,    \* rolls of each leader
  SplicesMax,  \* rolls that add a closed ledger of a job before the leader's own new one
  TrimsMax, SweepsMax,
  Removed

VARIABLES
  head,      \* the log's record. `names` are all ledgers that it ever named, by their numbers: from `first` on it names them
  ledgers,   \* by id: its state, and the entries in it
  pending,   \* ledgers that are written down as about to be named (L7)
  clients,   \* by client: its machine
  sent,      \* by entry: who sent it to which ledger, and what was confirmed to anybody by then
  confirmed, \* entries that were confirmed to whoever appended them
  reader,    \* the segment that it reads, and how many entries it has read of each
  changes    \* how many splices, trims and sweeps there were

vars == <<head, ledgers, pending, clients, sent, confirmed, reader, changes>>

Holds(rule) == rule \notin Removed
Last(seq) == seq[Len(seq)]
Min(a, b) == IF a <= b THEN a ELSE b
Max(a, b) == IF a >= b THEN a ELSE b
InOf(seq) == {seq[k] : k \in 1 .. Len(seq)}
Listed(record) == {record.names[k] : k \in record.first .. Len(record.names)}
Named == Listed(head)
Made == DOMAIN ledgers
NewId == Cardinality(Made) + 1
IsOpen(l) == ledgers[l].state = "OPEN"
Entries == 1 .. Len(sent)

Idle == [stage |-> "IDLE", known |-> <<>>, wanted |-> {}, new |-> <<>>, ledger |-> 0, previous |-> 0, number |-> 0, rolls |-> 0]

Init ==
  /\ head = [version |-> 1, names |-> <<>>, first |-> 1, open |-> 1, dropping |-> {}]
  /\ ledgers = <<>>
  /\ pending = {}
  /\ clients = [c \in Clients |-> Idle]
  /\ sent = <<>>
  /\ confirmed = {}
  /\ reader = [at |-> 1, read |-> [k \in 1 .. LedgersMax |-> 0]]
  /\ changes = [splices |-> 0, trims |-> 0, sweeps |-> 0]

Closed(l) == [ledgers EXCEPT ![l].state = IF @ = "OPEN" THEN "CLOSED" ELSE @]
Created(state) == Append(ledgers, [state |-> state, entries |-> <<>>])
Announced(l) == IF Holds("L7 pending") THEN pending \cup {l} ELSE pending
WithNames(more) == [head EXCEPT !.names = @ \o more, !.version = @ + 1]

-----------------------------------------------------------------------------
\* Taking over (chaining.LogTakeover)

\* L1: the last two; L8: all from the first that may be open.
ToRecover(record) ==
  LET end == Len(record.names)
      two == Max(record.first, IF Holds("L1 two") THEN end - 1 ELSE end)
      start == IF Holds("L8") THEN Max(record.first, Min(two, record.open)) ELSE two
  IN {record.names[k] : k \in start .. end}

TakeoverReads(c) ==
  /\ clients[c].stage = "IDLE"
  /\ Len(ledgers) < LedgersMax
  /\ clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.stage = "RECOVERING", !.known = head, !.wanted = ToRecover(head),
                                                    !.rolls = clients[c].rolls]]
  /\ UNCHANGED <<head, ledgers, pending, sent, confirmed, reader, changes>>

TakeoverRecovers(c, l) ==
  /\ clients[c].stage = "RECOVERING"
  /\ l \in clients[c].wanted
  /\ IF ledgers[l].state = "DELETED"   \* trimmed meanwhile: it reads again
     THEN clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.rolls = clients[c].rolls]] /\ ledgers' = ledgers
     ELSE clients' = [clients EXCEPT ![c].wanted = @ \ {l}] /\ ledgers' = Closed(l)
  /\ UNCHANGED <<head, pending, sent, confirmed, reader, changes>>

TakeoverCreates(c) ==
  /\ clients[c].stage = "RECOVERING"
  /\ clients[c].wanted = {}
  /\ Len(ledgers) < LedgersMax
  /\ ledgers' = Created("OPEN")
  /\ pending' = Announced(NewId)
  /\ clients' = [clients EXCEPT ![c].stage = IF Holds("L1 serve") THEN "TAKING" ELSE "LEADING",
                                ![c].new = <<NewId>>, ![c].ledger = NewId]
  /\ UNCHANGED <<head, sent, confirmed, reader, changes>>

\* Who lost deletes what it created, unless the log names it.
GivesBack(new) ==
  /\ ledgers' = [l \in Made |-> IF l \in InOf(new) \ Named THEN [ledgers[l] EXCEPT !.state = "DELETED"] ELSE ledgers[l]]
  /\ pending' = pending \ InOf(new)

TakeoverWrites(c) ==
  LET client == clients[c] IN
  /\ client.stage = "TAKING"
  /\ IF head.version = client.known.version \/ ~Holds("L1 cas")
     THEN /\ head' = [WithNames(client.new) EXCEPT !.open = Len(head.names) + 1]                 \* L8
          /\ pending' = pending \ InOf(client.new)
          /\ clients' = [clients EXCEPT ![c].stage = "LEADING", ![c].new = <<>>, ![c].number = Len(head.names) + 1]
          /\ ledgers' = ledgers
     ELSE /\ GivesBack(client.new)
          /\ clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.rolls = client.rolls]]
          /\ head' = head
  /\ UNCHANGED <<sent, confirmed, reader, changes>>

-----------------------------------------------------------------------------
\* Appending and rolling (log/rolling.py, chaining.LogRolling)

InFlight(l) == {n \in Entries : sent[n].to = l /\ n \notin InOf(ledgers[l].entries)}
Unconfirmed(l) == {n \in Entries : sent[n].to = l /\ n \notin confirmed}

LeaderSends(c) ==
  LET client == clients[c] IN
  /\ client.stage \in {"LEADING", "ROLLING"}
  /\ Len(sent) < EntriesMax
  \* L2: nothing goes to the new ledger before all in the previous one is confirmed.
  /\ client.previous # 0 /\ Holds("L2 wait") => Unconfirmed(client.previous) = {}
  /\ sent' = Append(sent, [by |-> c, to |-> client.ledger, behind |-> confirmed])
  /\ UNCHANGED <<head, ledgers, pending, clients, confirmed, reader, changes>>

EntryIsStored(n) ==
  LET l == sent[n].to IN
  /\ n \in InFlight(l) /\ IsOpen(l)
  /\ \A other \in InFlight(l) : other >= n
  /\ ledgers' = [ledgers EXCEPT ![l].entries = Append(@, n)]
  /\ UNCHANGED <<head, pending, clients, sent, confirmed, reader, changes>>

\* Its acknowledgements may come late: even when the ledger was recovered, with the entry in it.
LeaderConfirms(n) ==
  /\ n \notin confirmed
  /\ n \in InOf(ledgers[sent[n].to].entries)
  /\ \A other \in Unconfirmed(sent[n].to) : other >= n
  /\ confirmed' = confirmed \cup {n}
  /\ UNCHANGED <<head, ledgers, pending, clients, sent, reader, changes>>

LeaderCreates(c, splices) ==
  LET client == clients[c] IN
  /\ client.stage = "LEADING"
  /\ client.number # 0
  /\ client.rolls < RollsMax
  /\ client.previous = 0 \/ ~Holds("L2 previous")             \* the previous ledger is closed before the next roll
  /\ changes.splices + splices <= SplicesMax
  /\ Len(ledgers) + 1 + splices <= LedgersMax
  /\ head.open <= client.number                               \* nobody took over
  /\ LET made == IF splices = 0 THEN <<NewId>> ELSE <<NewId, NewId + 1>> IN
     /\ ledgers' = IF splices = 0 THEN Created("OPEN")
                   ELSE Append(Created("CLOSED"), [state |-> "OPEN", entries |-> <<>>])
     /\ pending' = IF Holds("L7 pending") THEN pending \cup InOf(made) ELSE pending
     /\ clients' = [clients EXCEPT ![c].stage = "ROLLING", ![c].known = head, ![c].new = made, ![c].rolls = @ + 1,
                                   ![c].ledger = IF Holds("L2 cas") THEN @ ELSE Last(made),
                                   ![c].previous = IF Holds("L2 cas") THEN @ ELSE client.ledger]
  /\ changes' = [changes EXCEPT !.splices = @ + splices]
  /\ UNCHANGED <<head, sent, confirmed, reader>>

\* Appends go on in the previous ledger until this is written.
LeaderWrites(c) ==
  LET client == clients[c] IN
  /\ client.stage = "ROLLING"
  /\ IF head.version = client.known.version
     THEN /\ head' = [WithNames(client.new) EXCEPT !.open = client.number]                       \* L8
          /\ pending' = pending \ InOf(client.new)
          /\ clients' = [clients EXCEPT ![c].stage = "LEADING", ![c].new = <<>>, ![c].ledger = Last(client.new),
                           ![c].previous = IF Holds("L2 cas") THEN client.ledger ELSE @,
                           ![c].number = Len(head'.names)]
          /\ ledgers' = ledgers
     ELSE /\ GivesBack(client.new)      \* deposed, or it tries again later with a ledger that was announced anew
          /\ clients' = [clients EXCEPT ![c].new = <<>>,
               ![c].stage = IF head.open <= client.number THEN "LEADING" ELSE "DEPOSED"]
          /\ head' = head
  /\ UNCHANGED <<sent, confirmed, reader, changes>>

LeaderClosesPrevious(c) ==                                                                       \* L2
  LET l == clients[c].previous IN
  /\ clients[c].stage = "LEADING"
  /\ l # 0
  /\ Unconfirmed(l) = {}
  /\ ledgers' = Closed(l)
  /\ clients' = [clients EXCEPT ![c].previous = 0]
  /\ UNCHANGED <<head, pending, sent, confirmed, reader, changes>>

LeaderLearns(c) ==                                                                               \* L5
  /\ clients[c].stage = "LEADING"
  /\ ledgers[clients[c].ledger].state # "OPEN"
  /\ clients' = [clients EXCEPT ![c].stage = "DEPOSED"]
  /\ UNCHANGED <<head, ledgers, pending, sent, confirmed, reader, changes>>

-----------------------------------------------------------------------------
\* Trimming and sweeping (dropping.py): by anybody

\* L3: one compare-and-set; L7: the record says what is to be deleted.
Trim ==
  LET dropped == head.names[head.first] IN
  /\ changes.trims < TrimsMax
  /\ head.first < Min(head.open, Len(head.names))
  /\ head' = [head EXCEPT !.first = @ + 1, !.version = @ + 1,
                          !.dropping = IF Holds("L7 dropped") THEN @ \cup {dropped} ELSE @]
  /\ changes' = [changes EXCEPT !.trims = @ + 1]
  /\ UNCHANGED <<ledgers, pending, clients, sent, confirmed, reader>>

DeletesTrimmed(l) ==
  /\ \/ l \in head.dropping
     \/ /\ ~Holds("L3") /\ changes.trims < TrimsMax
        /\ head.first < Min(head.open, Len(head.names)) /\ l = head.names[head.first]
  /\ ledgers[l].state # "DELETED"
  /\ ledgers' = [ledgers EXCEPT ![l].state = "DELETED"]
  /\ UNCHANGED <<head, pending, clients, sent, confirmed, reader, changes>>

\* L7: what is pending and not named is deleted, after a change of the head: proposals on an older one fail from then on.
Sweep(l) ==
  /\ changes.sweeps < SweepsMax
  /\ l \in pending \ Named
  /\ head' = IF Holds("L7 change") THEN [head EXCEPT !.version = @ + 1] ELSE head
  /\ ledgers' = [ledgers EXCEPT ![l].state = "DELETED"]
  /\ pending' = pending \ {l}
  /\ changes' = [changes EXCEPT !.sweeps = @ + 1]
  /\ UNCHANGED <<clients, sent, confirmed, reader>>

-----------------------------------------------------------------------------
\* A reader that follows (log/log_reader.py). It may be late: it passes over what was trimmed.

ReaderReads ==
  LET l == head.names[reader.at]
      done == reader.read[reader.at]
  IN
  /\ reader.at \in head.first .. Len(head.names)
  /\ done < Len(ledgers[l].entries)
  /\ IsOpen(l) => ledgers[l].entries[done + 1] \in confirmed
  /\ reader' = [reader EXCEPT !.read[reader.at] = @ + 1]
  /\ UNCHANGED <<head, ledgers, pending, clients, sent, confirmed, changes>>

ReaderCrosses ==                                                                                 \* L6
  LET l == head.names[reader.at] IN
  /\ reader.at < Len(head.names)
  /\ \/ reader.at < head.first
     \/ /\ ~IsOpen(l) \/ ~Holds("L6")
        /\ reader.read[reader.at] = Len(ledgers[l].entries)
  /\ reader' = [reader EXCEPT !.at = @ + 1]
  /\ UNCHANGED <<head, ledgers, pending, clients, sent, confirmed, changes>>

Next ==
  \/ \E c \in Clients :
       \/ TakeoverReads(c)
       \/ \E l \in clients[c].wanted : TakeoverRecovers(c, l)
       \/ TakeoverCreates(c) \/ TakeoverWrites(c)
       \/ LeaderSends(c) \/ LeaderCreates(c, 0) \/ LeaderCreates(c, 1) \/ LeaderWrites(c)
       \/ LeaderClosesPrevious(c) \/ LeaderLearns(c)
  \/ \E n \in Entries : EntryIsStored(n) \/ LeaderConfirms(n)
  \/ Trim \/ \E l \in Made : DeletesTrimmed(l) \/ Sweep(l)
  \/ ReaderReads \/ ReaderCrosses

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* What must hold

IsIn(n) == n \in InOf(ledgers[sent[n].to].entries)
IsNamed(l) == l \in InOf(head.names)
NumberOf(l) == CHOOSE k \in 1 .. Len(head.names) : head.names[k] = l
Before(m, n) ==
  LET one == sent[m].to  other == sent[n].to IN
  IF one = other
  THEN \E i, j \in 1 .. Len(ledgers[one].entries) : ledgers[one].entries[i] = m /\ ledgers[one].entries[j] = n /\ i < j
  ELSE NumberOf(one) < NumberOf(other)

\* What was confirmed is in the log, and what the log names exists.
ConfirmedIsInTheLog == \A n \in confirmed : IsIn(n) /\ IsNamed(sent[n].to)
NamedExists == \A l \in Named : ledgers[l].state # "DELETED"

\* L5: what was confirmed before an append began is before it.
OrderIsKept == \A n \in confirmed : \A m \in sent[n].behind : Before(m, n)

\* L2: if an entry of a leader is confirmed, all that it sent before are in the log, before it.
NoGap == \A n \in confirmed, m \in Entries : m < n /\ sent[m].by = sent[n].by => IsIn(m) /\ Before(m, n)

\* L6: a reader that went on has read all, and nothing is added behind it.
ReaderMissesNothing ==
  \A k \in 1 .. reader.at - 1 : k >= head.first => reader.read[k] = Len(ledgers[head.names[k]].entries)

\* L8: all before the first that may be open are closed.
ClosedBeforeOpen == \A k \in head.first .. Min(head.open - 1, Len(head.names)) : ~IsOpen(head.names[k])

\* L7: whatever exists can be found by anybody: the log names it, or will delete it, or it is pending.
NothingLeaks == \A l \in Made : ledgers[l].state # "DELETED" => l \in Named \cup head.dropping \cup pending

NeverTwoTakeoversAndARead == ~(Len(head.names) > 2 /\ reader.at > 2 /\ Cardinality(confirmed) > 1)
NeverConfirmsWhenDeposed == ~(\E n \in confirmed : clients[sent[n].by].stage = "LEADING" /\ head.open > clients[sent[n].by].number)

Symmetry == Permutations(Clients)
=============================================================================
