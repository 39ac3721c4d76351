---------------------------------- MODULE Log ----------------------------------
(* One log: a list of ledgers, its leaders, committers, trims, sweeps and a reader, as `replog.protocol.chaining`, `rolling`,
`appending` and `dropping` build them.

A ledger is here what `Ledger` shows it to be: whoever recovers it closes it, then nothing more gets in, and all that its writer
confirmed is in it. What was sent and not yet confirmed may be in it or not. Rules are cited by the numbers of
docs/reference/protocol-rules.md. A client or committer that takes no further step has crashed. A committer may lose patience at
any time, and may find a leader announced or not, as that is only advice (M3).

`Removed` names rules that are left out, to see that something breaks without them. *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Clients,     \* each takes the log over once, or again after it lost its compare-and-set
  Committers,  \* each writes one ledger with one entry, closes it, and has it added to the log
  LedgersMax,  \* ledgers that are ever created
  EntriesMax,  \* entries that are ever sent
  RollsMax,    \* rolls of each leader
  TrimsMax, SweepsMax,
  MayRead,     \* TRUE: there is a reader
  Removed

VARIABLES
  head,      \* the log's record. `names` are all ledgers that it ever named, by their numbers: from `first` on it names them.
             \* `requests` are the committers that ask the leader (L10)
  ledgers,   \* by id: its state, and the entries in it
  pending,   \* ledgers that are written down as about to be named (L7)
  clients,   \* by client: its machine
  jobs,      \* by committer: its machine; which ledgers it closed since it asked, and those of the leader that answered it
  sent,      \* by entry: who sent it to which ledger, and what was confirmed to anybody by then
  confirmed, \* entries that were confirmed to whoever appended them
  reader,    \* the segment that it reads, and how many entries it has read of each
  changes    \* how many trims and sweeps there were

vars == <<head, ledgers, pending, clients, jobs, sent, confirmed, reader, changes>>

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
NumberOf(l) == CHOOSE k \in 1 .. Len(head.names) : head.names[k] = l

Idle == [stage |-> "IDLE", known |-> 0, wanted |-> {}, new |-> <<>>, ledger |-> 0, previous |-> 0, number |-> 0, rolls |-> 0,
         answers |-> {}]
NewJob == [stage |-> "NEW", known |-> 0, wanted |-> {}, ledger |-> 0, asks |-> TRUE, fenced |-> {}, answered |-> {}]

Init ==
  /\ head = [version |-> 1, names |-> <<>>, first |-> 1, open |-> 1, dropping |-> {}, requests |-> {}]
  /\ ledgers = <<>>
  /\ pending = {}
  /\ clients = [c \in Clients |-> Idle]
  /\ jobs = [j \in Committers |-> NewJob]
  /\ sent = <<>>
  /\ confirmed = {}
  /\ reader = [at |-> 1, read |-> [k \in 1 .. LedgersMax |-> 0]]
  /\ changes = [trims |-> 0, sweeps |-> 0]

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
  /\ clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.stage = "RECOVERING", !.known = head.version, !.wanted = ToRecover(head),
                                                    !.rolls = clients[c].rolls]]
  /\ UNCHANGED <<head, ledgers, pending, jobs, sent, confirmed, reader, changes>>

TakeoverRecovers(c, l) ==
  /\ clients[c].stage = "RECOVERING"
  /\ l \in clients[c].wanted
  /\ IF ledgers[l].state = "DELETED"   \* trimmed meanwhile: it reads again
     THEN clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.rolls = clients[c].rolls]] /\ ledgers' = ledgers
     ELSE clients' = [clients EXCEPT ![c].wanted = @ \ {l}] /\ ledgers' = Closed(l)
  /\ UNCHANGED <<head, pending, jobs, sent, confirmed, reader, changes>>

TakeoverCreates(c) ==
  /\ clients[c].stage = "RECOVERING"
  /\ clients[c].wanted = {}
  /\ Len(ledgers) < LedgersMax
  /\ ledgers' = Created("OPEN")
  /\ pending' = Announced(NewId)
  /\ clients' = [clients EXCEPT ![c].stage = IF Holds("L1 serve") THEN "TAKING" ELSE "LEADING",
                                ![c].new = <<NewId>>, ![c].ledger = NewId]
  /\ UNCHANGED <<head, jobs, sent, confirmed, reader, changes>>

\* Who lost deletes what it created, unless the log names it.
GivesBack(new) ==
  /\ ledgers' = [l \in Made |-> IF l \in InOf(new) \ Named THEN [ledgers[l] EXCEPT !.state = "DELETED"] ELSE ledgers[l]]
  /\ pending' = pending \ InOf(new)

TakeoverWrites(c) ==
  LET client == clients[c] IN
  /\ client.stage = "TAKING"
  /\ IF head.version = client.known \/ ~Holds("L1 cas")
     THEN /\ head' = [WithNames(client.new) EXCEPT !.open = Len(head.names) + 1,                 \* L8
                                                  !.requests = IF Holds("L10 ends") THEN {} ELSE @]
          /\ pending' = pending \ InOf(client.new)
          /\ clients' = [clients EXCEPT ![c].stage = "LEADING", ![c].known = 0, ![c].new = <<>>,
                                        ![c].number = Len(head.names) + 1]
          /\ ledgers' = ledgers
     ELSE /\ GivesBack(client.new)
          /\ clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.rolls = client.rolls]]
          /\ head' = head
  /\ UNCHANGED <<jobs, sent, confirmed, reader, changes>>

-----------------------------------------------------------------------------
\* Appending and rolling (log/rolling.py, chaining.LogRolling)

InFlight(l) == {n \in Entries : sent[n].to = l /\ n \notin InOf(ledgers[l].entries)}
Unconfirmed(l) == {n \in Entries : sent[n].to = l /\ n \notin confirmed}

LeaderSends(c) ==
  LET client == clients[c] IN
  /\ client.stage \in {"LEADING", "ROLLING", "ROLLED"}
  /\ Len(sent) < EntriesMax
  \* L2: nothing goes to the new ledger before all in the previous one is confirmed.
  /\ client.previous # 0 /\ Holds("L2 wait") => Unconfirmed(client.previous) = {}
  /\ sent' = Append(sent, [by |-> c, to |-> client.ledger, behind |-> confirmed])
  /\ UNCHANGED <<head, ledgers, pending, clients, jobs, confirmed, reader, changes>>

EntryIsStored(n) ==
  LET l == sent[n].to IN
  /\ n \in InFlight(l) /\ IsOpen(l)
  /\ \A other \in InFlight(l) : other >= n
  /\ ledgers' = [ledgers EXCEPT ![l].entries = Append(@, n)]
  /\ UNCHANGED <<head, pending, clients, jobs, sent, confirmed, reader, changes>>

\* Its acknowledgements may come late: even when the ledger was recovered, with the entry in it.
LeaderConfirms(n) ==
  /\ n \notin confirmed
  /\ sent[n].by \in Clients
  /\ n \in InOf(ledgers[sent[n].to].entries)
  /\ \A other \in Unconfirmed(sent[n].to) : other >= n
  /\ confirmed' = confirmed \cup {n}
  /\ UNCHANGED <<head, ledgers, pending, clients, jobs, sent, reader, changes>>

\* With `asked`, a committer whose request is answered: a set of one, or none.
LeaderCreates(c, asked) ==
  LET client == clients[c]
      made == [k \in 1 .. Cardinality(asked) |-> jobs[CHOOSE j \in asked : TRUE].ledger] \o <<NewId>>
  IN
  /\ client.stage = "LEADING"
  /\ client.number # 0
  /\ client.rolls < RollsMax
  /\ client.previous = 0 \/ ~Holds("L2 previous")             \* the previous ledger is closed before the next roll
  /\ Len(ledgers) < LedgersMax
  /\ head.open <= client.number                               \* nobody took over
  /\ asked \subseteq head.requests                             \* L10
  /\ InOf(made) \cap Named = {}
  /\ ledgers' = Created("OPEN")
  /\ pending' = Announced(NewId)
  /\ clients' = [clients EXCEPT ![c].stage = "ROLLING", ![c].known = head.version, ![c].new = made, ![c].rolls = @ + 1,
                                ![c].answers = asked,
                                ![c].ledger = IF Holds("L2 cas") THEN @ ELSE NewId,
                                ![c].previous = IF Holds("L2 cas") THEN @ ELSE client.ledger]
  /\ UNCHANGED <<head, jobs, sent, confirmed, reader, changes>>

\* Without "L10 look" it adds what it was asked for although the record changed, unless somebody took over.
LeaderWrites(c) ==
  LET client == clients[c]
      may_write == \/ head.version = client.known
                   \/ ~Holds("L10 look") /\ client.answers # {} /\ Last(head.names) = client.ledger
  IN
  /\ client.stage = "ROLLING"
  /\ IF may_write
     THEN /\ head' = [WithNames(client.new) EXCEPT !.open = IF Holds("L8 open") THEN client.number ELSE Len(head.names) + Len(client.new),
                                                  !.requests = @ \ client.answers]             \* L8, L10
          /\ pending' = pending \ {Last(client.new)}
          /\ clients' = [clients EXCEPT ![c].stage = "ROLLED", ![c].known = 0]
          /\ jobs' = [j \in Committers |-> IF j \in client.answers
                                           THEN [jobs[j] EXCEPT !.answered = {client.ledger, Last(client.new)}] ELSE jobs[j]]
          /\ ledgers' = ledgers
     ELSE /\ GivesBack(<<Last(client.new)>>) \* deposed, or it tries again later with a ledger that was announced anew
          /\ clients' = [clients EXCEPT ![c].known = 0, ![c].new = <<>>, ![c].answers = {},
               ![c].stage = IF head.open <= client.number THEN "LEADING" ELSE "DEPOSED"]
          /\ head' = head /\ jobs' = jobs
  /\ UNCHANGED <<sent, confirmed, reader, changes>>

\* The answer of the metastore: appends go on in the previous ledger until the leader has it.
LeaderGoesOn(c) ==
  LET client == clients[c] IN
  /\ client.stage = "ROLLED"
  /\ clients' = [clients EXCEPT ![c].stage = "LEADING", ![c].new = <<>>, ![c].answers = {}, ![c].ledger = Last(client.new),
                   ![c].previous = IF Holds("L2 cas") THEN client.ledger ELSE @,
                   ![c].number = NumberOf(Last(client.new))]
  /\ UNCHANGED <<head, ledgers, pending, jobs, sent, confirmed, reader, changes>>

LeaderClosesPrevious(c) ==                                                                       \* L2
  LET l == clients[c].previous IN
  /\ clients[c].stage = "LEADING"
  /\ l # 0
  /\ Unconfirmed(l) = {}
  /\ ledgers' = Closed(l)
  /\ clients' = [clients EXCEPT ![c].previous = 0]
  /\ UNCHANGED <<head, pending, jobs, sent, confirmed, reader, changes>>

LeaderLearns(c) ==                                                                               \* L5
  /\ clients[c].stage = "LEADING"
  /\ ledgers[clients[c].ledger].state # "OPEN"
  /\ clients' = [clients EXCEPT ![c].stage = "DEPOSED"]
  /\ UNCHANGED <<head, ledgers, pending, jobs, sent, confirmed, reader, changes>>

-----------------------------------------------------------------------------
\* Committing (appending.LogAppending)

JobWrites(j) ==
  /\ jobs[j].stage = "NEW"
  /\ Len(ledgers) < LedgersMax /\ Len(sent) < EntriesMax
  /\ sent' = Append(sent, [by |-> j, to |-> NewId, behind |-> confirmed])
  /\ ledgers' = Append(ledgers, [state |-> "CLOSED", entries |-> <<Len(sent) + 1>>])
  /\ jobs' = [jobs EXCEPT ![j].stage = "READING", ![j].ledger = NewId]
  /\ UNCHANGED <<head, pending, clients, confirmed, reader, changes>>

\* It reads the log's record and decides. `asks`: it finds somebody announced. `waits`: it has patience.
JobReads(j, asks, waits) ==
  LET job == [jobs[j] EXCEPT !.known = head.version]
      is_named == job.ledger \in InOf(head.names) /\ Holds("L10 seek")
      is_asked == j \in head.requests
  IN
  /\ job.stage \in {"READING", "WAITING"}
  /\ asks => job.asks /\ head.open <= Len(head.names) /\ ~is_named /\ ~is_asked
  /\ waits => is_asked /\ job.stage # "WAITING"
  /\ jobs' = [jobs EXCEPT ![j] =
       IF is_named THEN [job EXCEPT !.stage = "SETTLING", !.known = 0]
       ELSE IF waits THEN [job EXCEPT !.stage = "WAITING", !.known = 0]
       ELSE IF is_asked /\ Holds("L10 withdraw") THEN [job EXCEPT !.stage = "WITHDRAWING"]
       ELSE IF asks THEN [job EXCEPT !.stage = "ASKING", !.asks = FALSE]
       ELSE [job EXCEPT !.stage = "RECOVERING", !.wanted = ToRecover(head)]]
  /\ UNCHANGED <<head, ledgers, pending, clients, sent, confirmed, reader, changes>>

\* The compare-and-sets of its request, and of taking that out.
JobAsks(j) ==
  LET is_current == head.version = jobs[j].known IN
  /\ jobs[j].stage \in {"ASKING", "WITHDRAWING"}
  /\ head' = IF is_current
             THEN [head EXCEPT !.version = @ + 1, !.requests = IF jobs[j].stage = "ASKING" THEN @ \cup {j} ELSE @ \ {j}]
             ELSE head
  /\ jobs' = [jobs EXCEPT ![j].stage = IF is_current /\ @ = "ASKING" THEN "WAITING" ELSE "READING", ![j].known = 0,
                         ![j].fenced = IF is_current THEN {} ELSE @]
  /\ UNCHANGED <<ledgers, pending, clients, sent, confirmed, reader, changes>>

JobRecovers(j, l) ==
  /\ jobs[j].stage = "RECOVERING"
  /\ l \in jobs[j].wanted
  /\ IF ledgers[l].state = "DELETED"
     THEN jobs' = [jobs EXCEPT ![j].stage = "READING", ![j].wanted = {}, ![j].known = 0] /\ ledgers' = ledgers
     ELSE /\ jobs' = [jobs EXCEPT ![j].wanted = @ \ {l}, ![j].fenced = IF IsOpen(l) THEN @ \cup {l} ELSE @]
          /\ ledgers' = Closed(l)
  /\ UNCHANGED <<head, pending, clients, sent, confirmed, reader, changes>>

\* As a takeover: nobody leads after it.
JobAdds(j) ==
  LET job == jobs[j] IN
  /\ job.stage = "RECOVERING" /\ job.wanted = {}
  /\ IF head.version = job.known
     THEN /\ head' = [WithNames(<<job.ledger>>) EXCEPT !.open = Len(head.names) + 2,
                                                      !.requests = IF Holds("L10 ends") THEN {} ELSE @]
          /\ jobs' = [jobs EXCEPT ![j].stage = "SETTLING", ![j].known = 0]
     ELSE /\ head' = head
          /\ jobs' = [jobs EXCEPT ![j].stage = "READING", ![j].known = 0]
  /\ UNCHANGED <<ledgers, pending, clients, sent, confirmed, reader, changes>>

\* L10: its ledger is in the log. It says so when all before that are closed: when the leader that answered knows of its answer.
OpenBefore(l) == {k \in head.first .. NumberOf(l) - 1 : IsOpen(head.names[k])}
JobIsTold(j) ==
  /\ jobs[j].stage = "SETTLING"
  /\ OpenBefore(jobs[j].ledger) = {} \/ ~Holds("L10 told")
  /\ jobs' = [jobs EXCEPT ![j].stage = "TOLD"]
  /\ confirmed' = confirmed \cup {n \in Entries : sent[n].by = j}
  /\ UNCHANGED <<head, ledgers, pending, clients, sent, reader, changes>>

\* The leader that answered is not heard of any more.
JobCloses(j, k) ==
  /\ jobs[j].stage = "SETTLING"
  /\ k \in OpenBefore(jobs[j].ledger)
  /\ ledgers' = Closed(head.names[k])
  /\ UNCHANGED <<head, pending, clients, jobs, sent, confirmed, reader, changes>>

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
  /\ UNCHANGED <<ledgers, pending, clients, jobs, sent, confirmed, reader>>

DeletesTrimmed(l) ==
  /\ \/ l \in head.dropping
     \/ /\ ~Holds("L3") /\ changes.trims < TrimsMax
        /\ head.first < Min(head.open, Len(head.names)) /\ l = head.names[head.first]
  /\ ledgers[l].state # "DELETED"
  /\ ledgers' = [ledgers EXCEPT ![l].state = "DELETED"]
  /\ UNCHANGED <<head, pending, clients, jobs, sent, confirmed, reader, changes>>

\* L7: what is pending and not named is deleted, after a change of the head: proposals on an older one fail from then on.
Sweep(l) ==
  /\ changes.sweeps < SweepsMax
  /\ l \in pending \ Named
  /\ head' = IF Holds("L7 change") THEN [head EXCEPT !.version = @ + 1] ELSE head
  /\ ledgers' = [ledgers EXCEPT ![l].state = "DELETED"]
  /\ pending' = pending \ {l}
  /\ changes' = [changes EXCEPT !.sweeps = @ + 1]
  /\ UNCHANGED <<clients, jobs, sent, confirmed, reader>>

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
  /\ UNCHANGED <<head, ledgers, pending, clients, jobs, sent, confirmed, changes>>

ReaderCrosses ==                                                                                 \* L6
  LET l == head.names[reader.at] IN
  /\ reader.at < Len(head.names)
  /\ \/ reader.at < head.first
     \/ /\ ~IsOpen(l) \/ ~Holds("L6")
        /\ reader.read[reader.at] = Len(ledgers[l].entries)
  /\ reader' = [reader EXCEPT !.at = @ + 1]
  /\ UNCHANGED <<head, ledgers, pending, clients, jobs, sent, confirmed, changes>>

Next ==
  \/ \E c \in Clients :
       \/ TakeoverReads(c)
       \/ \E l \in clients[c].wanted : TakeoverRecovers(c, l)
       \/ TakeoverCreates(c) \/ TakeoverWrites(c)
       \/ LeaderSends(c) \/ LeaderCreates(c, {}) \/ (\E j \in head.requests : LeaderCreates(c, {j}))
       \/ LeaderWrites(c) \/ LeaderGoesOn(c) \/ LeaderClosesPrevious(c) \/ LeaderLearns(c)
  \/ \E j \in Committers :
       \/ JobWrites(j) \/ JobAsks(j) \/ JobAdds(j) \/ JobIsTold(j)
       \/ \E asks, waits \in BOOLEAN : JobReads(j, asks, waits)
       \/ \E l \in jobs[j].wanted : JobRecovers(j, l)
       \/ jobs[j].stage = "SETTLING" /\ \E k \in OpenBefore(jobs[j].ledger) : JobCloses(j, k)
  \/ \E n \in Entries : EntryIsStored(n) \/ LeaderConfirms(n)
  \/ Trim \/ \E l \in Made : DeletesTrimmed(l) \/ Sweep(l)
  \/ MayRead /\ (ReaderReads \/ ReaderCrosses)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* What must hold

IsIn(n) == n \in InOf(ledgers[sent[n].to].entries)
IsNamed(l) == l \in InOf(head.names)
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

\* L7: whatever exists can be found by anybody: the log names it, or will delete it, or it is pending, or in a job's directory.
NothingLeaks ==
  \A l \in Made :
    ledgers[l].state # "DELETED" => l \in Named \cup head.dropping \cup pending \cup {jobs[j].ledger : j \in Committers}

\* L10: a job's ledger is in the log once. A leader that answered its committer was not deposed by it after that had asked.
NamedOnce == \A k, m \in 1 .. Len(head.names) : k # m => head.names[k] # head.names[m]
LeaderStays == \A j \in Committers : jobs[j].fenced \cap jobs[j].answered = {}

NeverTwoTakeoversAndARead == ~(Len(head.names) > 2 /\ reader.at > 2 /\ Cardinality(confirmed) > 1)
NeverConfirmsWhenDeposed == ~(\E n \in confirmed : clients[sent[n].by].stage = "LEADING" /\ head.open > clients[sent[n].by].number)

NeverTellsWhileALeaderStays ==
  ~(\E j \in Committers, c \in Clients :
      jobs[j].stage = "TOLD" /\ jobs[j].answered # {} /\ clients[c].stage = "LEADING" /\ IsOpen(clients[c].ledger)
      /\ \E n \in confirmed : sent[n].to = clients[c].ledger)
NeverIsTakenOutInVain == ~(\E j \in Committers : jobs[j].stage = "TOLD" /\ ~jobs[j].asks /\ jobs[j].fenced # {})

Symmetry == Permutations(Clients) \cup Permutations(Committers)
=============================================================================
