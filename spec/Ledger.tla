-------------------------------- MODULE Ledger --------------------------------
(* One ledger: its writers, its recoveries or takeovers, its bookies and its record, as `replog.protocol` builds them.

The words are those of the code and of docs/reference/protocol-rules.md, whose numbers are cited. A bounded ledger (seed 000)
has one writer of term 1 and recoveries that all have term 2. With `Unbounded` (seed 004, design B) each recovery is a
takeover with a term of its own, and goes on as the writer.

The network loses, delays, doubles and reorders: adds and their acknowledgements are sets from which nothing is ever taken, so
each may arrive at any later time, any number of times, or never. An answer to a fencing request or to a recovery read is heard
in the step that gives it, or (with `LateAnswers`) at any later time. A client that stops taking steps has crashed.

What an entry says besides its id is who wrote it first (`by`), and the last add confirmed in its header (W3). One entry is
one batch here; a gathering of batches confirms together, so the writer may confirm less than it could (`WriterConfirms`).

`Removed` names rules that are left out, to see that something breaks without them. *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Bookies,      \* all that there are
  Creator,      \* the client that created the ledger: the writer of term 1
  Recoveries,   \* attempts to recover the ledger, or to take it over
  E, Qw, Qa,    \* ensemble, write quorum, ack quorum
  EntriesMax,   \* how many ids are ever used
  ChangesMax,   \* ensemble changes of each writer
  ReplacedMax,  \* indices that one of them replaces
  PrivateMax,   \* private ensemble changes of each recovery (R6)
  LossesMax,    \* how often a bookie's disk forgets what it had
  LossKind,     \* "doubt": it knows that it lost something (B8); "unnoticed": it does not
  DeclaredMax,  \* bookies that an operator declares lost (B8a)
  MaySilent,    \* TRUE: recovery may decide without a member that stays silent (R10)
  LiesMax,      \* wrong numbers that bookies report as the last add confirmed (R11)
  MayEnd,       \* TRUE: a deposed writer learns of it (W4). Otherwise it goes on, as if the answers that say so were lost
  MayClose,     \* TRUE: the writer may close the ledger itself (R1)
  RepairsMax,   \* compare-and-sets of fillers, each of one index of a fragment whose range is fixed (F1, F4)
  MayPublish,   \* TRUE: the writer publishes its last add confirmed (W5)
  SlowMetastore, \* TRUE: a writer's compare-and-set arrives some time after it was sent
  LateAnswers,  \* TRUE: answers to recoveries may be heard late
  Unbounded,    \* TRUE: takeovers continue the ledger in a new term (seed 004)
  RollsMax,     \* planned fragments, of all writers
  TrimsMax,     \* trims, by anybody, of a fragment each
  MayDrop,      \* TRUE: bookies drop what the record says is trimmed, or not theirs (F5)
  Removed       \* rules that are left out

VARIABLES
  meta,      \* the ledger's record in the metastore
  cas,       \* by client: the compare-and-set of a writer that is under way
  clients,   \* by client: its machine
  fence,     \* by bookie: the durable fence term
  stored,    \* by bookie: the durable entries
  claim,     \* by bookie: the highest last add confirmed that it can prove (R11)
  doubt,     \* by bookie: TRUE while its denials are weak (B8)
  declared,  \* the bookies that were declared lost
  adds,      \* all adds that were ever sent
  acks,      \* all acknowledgements that were ever sent
  answers,   \* all answers to recoveries that were not heard at once
  faults,    \* how many of each bounded fault happened
  history    \* what readers may still believe: records that they read, and what was ever proven to them

vars == <<meta, cas, clients, fence, stored, claim, doubt, declared, adds, acks, answers, faults, history>>

----------------------------------------------------------------------------- 
\* Words

Holds(rule) == rule \notin Removed
Clients == Recoveries \cup {Creator}
Indices == 0 .. E - 1
NoEntry == -1
NoClaim == [id |-> NoEntry, stamp |-> 0]
Max(a, b) == IF a >= b THEN a ELSE b
Later(one, other) == IF other.id > one.id THEN other ELSE one
Last(seq) == seq[Len(seq)]

WriteSet(id) == {(id + w) % E : w \in 0 .. Qw - 1}                                          \* W1
NegativesNeeded == IF Holds("R4 negatives") THEN Qw - Qa + 1 ELSE Max(1, Qw - Qa)
IsCovered(indices) == \A rotation \in Indices : Cardinality(indices \cap WriteSet(rotation)) >= Qw - Qa + 1
Ensembles == {ens \in [Indices -> Bookies] : \A i, j \in Indices : i # j => ens[i] # ens[j]}
Members(ens) == {ens[i] : i \in Indices}

Place(fragments, id) ==
  CHOOSE k \in 1 .. Len(fragments) :
    /\ fragments[k].first <= Max(id, 0) \/ k = 1
    /\ \A l \in k + 1 .. Len(fragments) : fragments[l].first > Max(id, 0)
FragmentOf(fragments, id) == fragments[Place(fragments, id)]
WithFragment(fragments, fragment) ==                                                         \* C2
  IF Last(fragments).first = fragment.first
  THEN [fragments EXCEPT ![Len(fragments)] = fragment]
  ELSE Append(fragments, fragment)
\* What was trimmed stays in `meta`: readers may know it still. `faults.trims` fragments are not in the record any more.
TrimTo == IF faults.trims = 0 THEN 0 ELSE meta.fragments[faults.trims + 1].first
\* A closed record drops a last fragment that holds no entry, but never the first one that it names.
ClosedAt(record, last) ==
  LET kept == {k \in 1 .. Len(record.fragments) : k <= faults.trims + 1 \/ record.fragments[k].first <= last} IN
  [record EXCEPT !.state = "CLOSED", !.last = last, !.version = @ + 1, !.fragments = SubSeq(@, 1, Cardinality(kept))]
RECURSIVE WithFragments(_, _)
WithFragments(fragments, more) ==
  IF more = <<>> THEN fragments ELSE WithFragments(WithFragment(fragments, Head(more)), Tail(more))

Sends(c, term, entries, indices, ens, proof) ==
  {[to |-> ens[i], at |-> i, entry |-> e, from |-> c, term |-> term, proof |-> proof] :
     <<e, i>> \in {pair \in entries \X indices : pair[2] \in WriteSet(pair[1].id)}}

\* An acknowledgement that was sent may have been heard: a machine that does not use it yet has not heard it yet. It counts for
\* its index if it comes from the bookie that is there now (C6); `kept` has what a machine without rule C5 or R6 keeps.
AckedAt(c, client, id) ==
  {i \in WriteSet(id) :
     \/ <<c, client.ens[i], i, id>> \in acks
     \/ <<i, id>> \in client.kept
     \/ ~Holds("C6") /\ \E b \in Bookies : <<c, b, i, id>> \in acks}
IsAcked(c, client, id, quorum) == Cardinality(AckedAt(c, client, id)) >= quorum

\* C9: while a change is under way, only indices count that have the same bookie in the old fragment and in the new one.
Replaced(client) == IF client.stage = "CHANGING" THEN {i \in Indices : client.wanted[i] # client.ens[i]} ELSE {}
IsCounted(c, client, id, quorum) ==
  Cardinality(AckedAt(c, client, id) \ (IF Holds("C9") THEN Replaced(client) ELSE {})) >= quorum
MayLack(indices) == \A rotation \in Indices : Cardinality(WriteSet(rotation) \ indices) >= Max(Qa, Qw - Qa + 1)      \* C7
\* C1: everywhere else a change freezes confirmations. A planned fragment replaces nobody here, and anybody in the code.
IsFrozen(client) ==
  /\ client.stage = "CHANGING" /\ Holds("C1")
  /\ Replaced(client) = {} \/ ~MayLack(Replaced(client))
KeptAt(c, client, indices) == {pair \in indices \X {e.id : e \in client.sent} : pair[1] \in AckedAt(c, client, pair[2])}

----------------------------------------------------------------------------- 
\* The beginning

\* What a machine keeps when it has ended: only what it confirmed matters from then on.
Ended(stage, lac) ==
  [stage |-> stage, term |-> 0, version |-> 0, ens |-> <<>>, pushed |-> NoEntry, lac |-> lac, sent |-> {}, kept |-> {},
   wanted |-> <<>>, changes |-> 0, frozen |-> <<>>, fenced |-> {}, start |-> NoClaim, next |-> 0, denied |-> {},
   weak |-> {}, end |-> NoEntry, private |-> <<>>]

Writing(stage, term, version, ens, last) ==
  [Ended(stage, last) EXCEPT !.term = term, !.version = version, !.ens = ens, !.pushed = last]

NoCas == [stage |-> "none", version |-> 0, record |-> <<>>]

Init ==
  \E ens \in Ensembles :
    /\ meta = [version |-> 1, state |-> "OPEN", term |-> 1, last |-> NoEntry,
               fragments |-> <<[first |-> 0, ensemble |-> ens, term |-> 1]>>]
    /\ cas = [c \in Clients |-> NoCas]
    /\ clients = [c \in Clients |->
         IF c = Creator THEN Writing("STEADY", 1, 1, ens, NoEntry) ELSE Ended("NEW", NoEntry)]
    /\ fence = [b \in Bookies |-> 0]
    /\ stored = [b \in Bookies |-> {}]
    /\ claim = [b \in Bookies |-> NoClaim]
    /\ doubt = [b \in Bookies |-> FALSE]
    /\ declared = {}
    /\ adds = {}
    /\ acks = {}
    /\ answers = {}
    /\ faults = [losses |-> 0, lies |-> 0, repairs |-> 0, rolls |-> 0, trims |-> 0]
    /\ history = [records |-> IF Unbounded THEN {<<[first |-> 0, ensemble |-> ens, term |-> 1]>>} ELSE {},
                  claims |-> {NoClaim}]

Proven(new) == IF Unbounded THEN [history EXCEPT !.claims = @ \cup {new}] ELSE history
Recorded(record) ==
  IF Unbounded THEN [history EXCEPT !.records = @ \cup {record.fragments}] ELSE history

----------------------------------------------------------------------------- 
\* Bookies (protocol/bookie.py)

MayAccept(b, term) == b \notin declared /\ (term >= fence[b] \/ ~Holds("T1"))
Raised(b, term) == [fence EXCEPT ![b] = Max(@, term)]

BookieAccepts(m) ==
  LET b == m.to
      is_recovery == m.from # m.entry.by \/ m.term # m.entry.stamp
      proven == Later([id |-> m.entry.lac, stamp |-> m.entry.lac_stamp], m.proof)
  IN
  /\ MayAccept(b, m.term)
  /\ doubt[b] => is_recovery \/ ~Holds("B8 adds")                                           \* B8
  /\ fence' = Raised(b, m.term)                                                              \* T1
  /\ \/ /\ stored' = [stored EXCEPT ![b] = @ \cup {m.entry}]
        /\ acks' = acks \cup {<<m.from, b, m.at, m.entry.id>>}
     \/ /\ ~Holds("B1")                                       \* acknowledged, and lost in a crash before the sync
        /\ stored' = stored
        /\ acks' = acks \cup {<<m.from, b, m.at, m.entry.id>>}
  /\ claim' = [claim EXCEPT ![b] = Later(@, proven)]
  /\ history' = Proven(proven)
  /\ <<fence, stored, acks, claim>>' # <<fence, stored, acks, claim>>
  /\ UNCHANGED <<meta, cas, clients, doubt, declared, adds, answers, faults>>

\* W5: the writer published its last add confirmed, during a change to the bookies that stay (C9). Nothing but the highest matters,
\* so it is not a message of its own.
BookieHearsConfirmed(b, c) ==
  LET new == [id |-> clients[c].lac, stamp |-> FragmentOf(meta.fragments, clients[c].lac).term] IN
  /\ clients[c].stage \in {"STEADY", "CHANGING"}
  /\ \E i \in Indices \ Replaced(clients[c]) : clients[c].ens[i] = b
  /\ MayAccept(b, clients[c].term)
  /\ new.id > claim[b].id
  /\ fence' = Raised(b, clients[c].term)
  /\ claim' = [claim EXCEPT ![b] = new]
  /\ history' = Proven(new)
  /\ UNCHANGED <<meta, cas, clients, stored, doubt, declared, adds, acks, answers, faults>>

\* A disk forgets a suffix of what it had, and maybe the fence and what was proven (B8).
BookieLoses(b, kept) ==
  /\ faults.losses < LossesMax
  /\ b \notin declared
  /\ kept \subseteq stored[b]
  /\ \A e \in kept, f \in stored[b] \ kept : e.id < f.id
  /\ faults' = [faults EXCEPT !.losses = @ + 1]
  /\ stored' = [stored EXCEPT ![b] = kept]
  /\ fence' = [fence EXCEPT ![b] = 0]
  /\ claim' = [claim EXCEPT ![b] = NoClaim]
  /\ doubt' = [doubt EXCEPT ![b] = LossKind = "doubt" /\ Holds("B8 doubt")]
  /\ UNCHANGED <<meta, cas, clients, declared, adds, acks, answers, history>>

\* Without R3 a fence is only in memory, and a restart forgets it.
BookieForgetsFence(b) ==
  /\ ~Holds("R3")
  /\ fence[b] > 1
  /\ fence' = [fence EXCEPT ![b] = 0]
  /\ UNCHANGED <<meta, cas, clients, stored, claim, doubt, declared, adds, acks, answers, faults, history>>

OperatorDeclaresLost(b) ==                                                                   \* B8a
  /\ b \notin declared
  /\ Cardinality(declared) < DeclaredMax
  /\ declared' = declared \cup {b}
  /\ UNCHANGED <<meta, cas, clients, fence, stored, claim, doubt, adds, acks, answers, faults, history>>

----------------------------------------------------------------------------- 
\* The writer (protocol/writing.py)

IsWriter(c) == clients[c].stage \in {"STEADY", "CHANGING", "CLOSING"}

WriterAdds(c) ==                                                                             \* W1, W3
  LET client == clients[c]
      entry == [id |-> client.pushed + 1, stamp |-> client.term, by |-> c, lac |-> client.lac,
                lac_stamp |-> IF client.lac = NoEntry THEN 0 ELSE FragmentOf(meta.fragments, client.lac).term]
  IN
  /\ client.stage \in {"STEADY", "CHANGING"}
  /\ entry.id < EntriesMax
  /\ adds' = adds \cup Sends(c, client.term, {entry}, Indices \ Replaced(client), client.ens, NoClaim)
  /\ clients' = [clients EXCEPT ![c].pushed = entry.id, ![c].sent = @ \cup {entry}]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, doubt, declared, acks, answers, faults, history>>

\* During a change `sent` keeps what is confirmed: the bookies that it brings in get that, too (C9).
WriterConfirms(c, last) ==                                                                   \* W2, C1, C9
  LET client == clients[c] IN
  /\ \/ client.stage = "STEADY"
     \/ client.stage = "CHANGING" /\ ~IsFrozen(client)
     \/ client.stage = "CLOSING" /\ ~Holds("R1 freeze")
  /\ last \in client.lac + 1 .. client.pushed
  /\ IF Holds("W2")
     THEN \A id \in client.lac + 1 .. last : IsCounted(c, client, id, Qa)
     ELSE IsCounted(c, client, last, Qa)
  /\ clients' = [clients EXCEPT
       ![c].lac = last,
       ![c].sent = IF client.stage = "CHANGING" THEN @ ELSE {e \in @ : e.id > last},
       ![c].kept = {pair \in @ : pair[2] > last}]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, doubt, declared, adds, acks, answers, faults, history>>

WriterIsFenced(c) ==                                                                         \* W4
  /\ IsWriter(c)
  /\ clients[c].stage # "CLOSING"
  /\ \E m \in adds : m.from = c /\ m.term = clients[c].term /\ m.term < fence[m.to]
  /\ clients' = [clients EXCEPT ![c] = Ended("FENCED", clients[c].lac)]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, doubt, declared, adds, acks, answers, faults, history>>

NewFragment(client, ens) ==
  [first |-> IF Holds("C2") THEN client.lac + 1 ELSE (IF client.pushed > client.lac THEN client.lac + 2 ELSE client.lac + 1),
   ensemble |-> ens, term |-> client.term]

Moved(client, c) ==                                                                          \* C5
  [client EXCEPT !.stage = "STEADY", !.ens = client.wanted, !.wanted = <<>>, !.sent = {e \in @ : e.id > client.lac},
     !.kept = IF Holds("C5") THEN {} ELSE @ \cup KeptAt(c, client, Indices)]

Resends(client, c) ==
  Sends(c, client.term, client.sent, Replaced(client), client.wanted, NoClaim)

\* A compare-and-set on the version that the client knows, which is the current one. Later ones fail: WriterFindsRecordChanged.
Propose(c, record) ==
  IF SlowMetastore
  THEN cas' = [cas EXCEPT ![c] = [stage |-> "sent", version |-> meta.version, record |-> record]] /\ UNCHANGED <<meta, history>>
  ELSE /\ cas' = [cas EXCEPT ![c] = [stage |-> "written", version |-> meta.version, record |-> <<>>]]
       /\ meta' = record
       /\ history' = Recorded(record)

WriterProposesEnsemble(c, ens) ==                                                            \* C1, C2
  LET client == clients[c]
      replaced == {i \in Indices : ens[i] # client.ens[i]}
  IN
  /\ client.stage = "STEADY"
  /\ client.changes < ChangesMax
  /\ replaced # {} /\ Cardinality(replaced) <= ReplacedMax
  /\ \A i \in replaced : ens[i] \notin Members(client.ens) /\ ens[i] \notin declared         \* C2
  /\ cas[c].stage # "sent"
  /\ meta.version = client.version    \* else the compare-and-set fails, whatever it proposes: WriterFindsRecordChanged
  /\ Propose(c, [meta EXCEPT !.fragments = WithFragment(@, NewFragment(client, ens)), !.version = @ + 1])
  /\ LET changing == [client EXCEPT !.stage = "CHANGING", !.wanted = ens, !.changes = @ + 1] IN
     IF Holds("C3")
     THEN clients' = [clients EXCEPT ![c] = changing] /\ adds' = adds
     ELSE clients' = [clients EXCEPT ![c] = Moved(changing, c)] /\ adds' = adds \cup Resends(changing, c)
  /\ UNCHANGED <<fence, stored, claim, doubt, declared, acks, answers, faults>>

\* A planned fragment, of the same bookies: readers and trims have a place where it begins.
WriterRolls(c) ==
  LET client == clients[c] IN
  /\ client.stage = "STEADY"
  /\ faults.rolls < RollsMax
  /\ client.lac >= Last(meta.fragments).first
  /\ cas[c].stage # "sent"
  /\ meta.version = client.version
  /\ Propose(c, [meta EXCEPT !.fragments = WithFragment(@, NewFragment(client, client.ens)), !.version = @ + 1])
  /\ clients' = [clients EXCEPT ![c] = [client EXCEPT !.stage = "CHANGING", !.wanted = client.ens]]
  /\ faults' = [faults EXCEPT !.rolls = @ + 1]
  /\ UNCHANGED <<fence, stored, claim, doubt, declared, adds, acks, answers>>

WriterProposesEnd(c) ==                                                                      \* R1
  LET client == clients[c] IN
  /\ client.stage = "STEADY"
  /\ cas[c].stage # "sent"
  /\ meta.version = client.version
  /\ Propose(c, ClosedAt(meta, client.lac))
  /\ clients' = [clients EXCEPT ![c] =
       IF Holds("R1 freeze") THEN [client EXCEPT !.stage = "CLOSING", !.sent = {}, !.kept = {}]
                             ELSE [client EXCEPT !.stage = "CLOSING"]]
  /\ UNCHANGED <<fence, stored, claim, doubt, declared, adds, acks, answers, faults>>

MetastoreApplies(c) ==
  /\ cas[c].stage = "sent"
  /\ IF meta.version = cas[c].version
     THEN /\ meta' = cas[c].record
          /\ cas' = [cas EXCEPT ![c].stage = "written", ![c].record = <<>>]
          /\ history' = Recorded(cas[c].record)
     ELSE /\ cas' = [cas EXCEPT ![c] = [NoCas EXCEPT !.stage = "lost"]]
          /\ UNCHANGED <<meta, history>>
  /\ UNCHANGED <<clients, fence, stored, claim, doubt, declared, adds, acks, answers, faults>>

\* The answer of the metastore, or what reading the record back says about the proposal (M1).
WriterLearnsChange(c) ==
  LET client == clients[c]
      is_mine == cas[c].stage = "written" \/ (cas[c].stage = "sent" /\ ~Holds("M1"))
      version == cas[c].version + 1
  IN
  /\ client.stage = "CHANGING"
  /\ is_mine
  /\ clients' = [clients EXCEPT ![c] = [Moved(client, c) EXCEPT !.version = version]]
  /\ adds' = adds \cup Resends(client, c)                                                    \* C5
  /\ cas' = [cas EXCEPT ![c] = NoCas]
  /\ UNCHANGED <<meta, fence, stored, claim, doubt, declared, acks, answers, faults, history>>

\* Without C9's time-out a writer that waits too long takes its change for undone, though it may be written later.
WriterTimesOut(c) ==
  /\ ~Holds("C9 time-out")
  /\ clients[c].stage = "CHANGING" /\ cas[c].stage = "sent"
  /\ clients' = [clients EXCEPT ![c].stage = "STEADY", ![c].wanted = <<>>]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, doubt, declared, adds, acks, answers, faults, history>>

\* C4: somebody else was first. Only a repair leaves the ledger open; the writer adopts that and proposes again (F4).
WriterMeetsConflict(c) ==
  LET client == clients[c]
      is_open == meta.state = "OPEN" /\ meta.term = client.term
      again == is_open \/ (meta.state = "IN_RECOVERY" /\ ~Holds("C4"))
      fragment == NewFragment(client, client.wanted)
  IN
  /\ client.stage \in {"CHANGING", "CLOSING"}
  /\ cas[c].stage = "lost"
  /\ IF again /\ (client.stage = "CHANGING" \/ is_open)
     THEN /\ clients' = [clients EXCEPT ![c].version = meta.version, ![c].sent = {e \in @ : e.id > client.lac}]
          /\ cas' = [cas EXCEPT ![c] = [stage |-> "sent", version |-> meta.version,
               record |-> IF client.stage = "CHANGING"
                          THEN [meta EXCEPT !.fragments = WithFragment(@, fragment), !.version = @ + 1]
                          ELSE ClosedAt(meta, client.lac)]]
     ELSE /\ clients' = [clients EXCEPT ![c] = Ended(
               IF client.stage = "CLOSING" /\ meta.state = "CLOSED" /\ (meta.last = client.lac \/ ~Holds("R1 same"))
               THEN "CLOSED" ELSE "FENCED", client.lac)]
          /\ cas' = [cas EXCEPT ![c] = NoCas]
  /\ UNCHANGED <<meta, fence, stored, claim, doubt, declared, adds, acks, answers, faults, history>>

\* A writer that meets a newer record before it proposes anything.
WriterFindsRecordChanged(c) ==
  LET client == clients[c] IN
  /\ client.stage = "STEADY"
  /\ meta.version # client.version
  /\ clients' = [clients EXCEPT ![c] =
       IF meta.state = "OPEN" /\ meta.term = client.term
       THEN [client EXCEPT !.version = meta.version]
       ELSE Ended("FENCED", client.lac)]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, doubt, declared, adds, acks, answers, faults, history>>

WriterLearnsEnd(c) ==
  /\ clients[c].stage = "CLOSING"
  /\ cas[c].stage = "written"
  /\ clients' = [clients EXCEPT ![c] = Ended("CLOSED", clients[c].lac)]
  /\ cas' = [cas EXCEPT ![c] = NoCas]
  /\ UNCHANGED <<meta, fence, stored, claim, doubt, declared, adds, acks, answers, faults, history>>

----------------------------------------------------------------------------- 
\* Recovery and takeover (protocol/recovery.py, fencing.py, absence.py, writing_back.py)

\* Claiming is one step: a client whose answer is late does nothing in between, and a token says whose the record is (M1).
RecoveryClaims(r) ==
  LET term == IF Unbounded THEN meta.term + 1 ELSE 2
      claimed == [meta EXCEPT !.state = "IN_RECOVERY", !.term = term, !.version = @ + 1]
      is_found == meta.state = "IN_RECOVERY" /\ (~Unbounded \/ ~Holds("M1 nonce"))
      record == IF is_found THEN meta ELSE claimed
  IN
  /\ clients[r].stage = "NEW"
  /\ IF meta.state = "CLOSED"
     THEN clients' = [clients EXCEPT ![r] = Ended("RECOVERED", NoEntry)] /\ UNCHANGED <<meta, history>>
     ELSE /\ meta' = record
          /\ history' = Recorded(record)
          /\ clients' = [clients EXCEPT ![r] = [Ended("FENCING", NoEntry) EXCEPT
               !.term = record.term, !.version = record.version, !.frozen = Last(record.fragments),
               !.ens = Last(record.fragments).ensemble]]
  /\ UNCHANGED <<cas, fence, stored, claim, doubt, declared, adds, acks, answers, faults>>

LostIndices(client) == {i \in Indices : client.frozen.ensemble[i] \in declared}

\* R2, B8a
IsFenced(client) ==
  LET lost == LostIndices(client) IN
  \/ ~Holds("R2")
  \/ /\ IsCovered(client.fenced)
     /\ lost # {} => (Indices \ lost) \subseteq client.fenced \/ ~Holds("B8a")

ReadWhenFenced(client) ==                                                                    \* R4, R5
  IF ~IsFenced(client) THEN client
  ELSE LET below == client.frozen.first - 1
           start == IF Holds("R4 start") THEN Max(client.start.id, below) ELSE client.start.id
       IN [client EXCEPT !.stage = "READING", !.start.id = start, !.next = start + 1, !.lac = start, !.fenced = {}]

FenceHeard(client, index, proven) ==
  IF client.stage # "FENCING" THEN client
  ELSE ReadWhenFenced([client EXCEPT !.fenced = @ \cup {index}, !.start = Later(@, proven)])

\* What a bookie answers to a fence: what it can prove. A number without a proof is no answer, but where R11 is left out.
Reported(b) ==
  {claim[b]} \cup
  (IF faults.lies < LiesMax /\ ~Holds("R11") THEN {[id |-> EntriesMax, stamp |-> 1]} ELSE {})

BookieAnswersFence(r, index) ==
  LET client == clients[r]
      b == client.frozen.ensemble[index]
  IN
  /\ client.stage = "FENCING"
  /\ index \notin client.fenced
  /\ b \notin declared
  /\ client.term >= fence[b]
  /\ fence' = Raised(b, client.term)
  /\ \E proven \in Reported(b) :
       /\ faults' = IF proven = claim[b] THEN faults ELSE [faults EXCEPT !.lies = @ + 1]
       /\ LET answer == [to |-> r, about |-> "fence", at |-> index, id |-> NoEntry, says |-> "ok", with |-> proven] IN
          IF LateAnswers
          THEN answers' = answers \cup {answer} /\ clients' = clients
          ELSE answers' = answers /\ clients' = [clients EXCEPT ![r] = FenceHeard(client, index, proven)]
  /\ UNCHANGED <<meta, cas, stored, claim, doubt, declared, adds, acks, history>>

\* R10: a copy wins over any number of denials. `MaySilent`: a member that does not answer is given up. It is decided as soon as it can
\* be: a copy that would be found later is as well found before the last denial.
IsEnd(client) ==
  LET members == WriteSet(client.next)
      lost == LostIndices(client) \cap members
      counted == (IF Holds("B8a") THEN client.denied ELSE client.denied \cup lost) \cap members
      unheard == members \ (client.denied \cup client.weak \cup lost)
      proven == /\ Cardinality(counted) >= NegativesNeeded
                /\ lost = {} \/ ~Holds("B8a")
                /\ unheard = {} \/ MaySilent \/ ~Holds("R10 heard")
      \* Weak denials count once all deny, unless an ack quorum knows that it lost something.
      all_deny == unheard = {} /\ Cardinality((client.weak \cap members) \cup lost) < Qa
  IN proven \/ all_deny

Decided(client) ==
  IF client.stage = "READING" /\ IsEnd(client)
  THEN [client EXCEPT !.stage = "WRITING", !.end = client.next - 1, !.denied = {}, !.weak = {}]
  ELSE client

\* What was found and is not yet in the written prefix: `client.sent`. `client.lac` is what the code calls `written_through`; it
\* advances when something depends on it.
ReadFound(client, entry) ==
  Decided([client EXCEPT !.next = @ + 1, !.sent = @ \cup {entry}, !.weak = {},
     !.denied = IF Holds("R4 carry") THEN {} ELSE @ \cap WriteSet(entry.id + 1)])

ReadDenied(client, index, is_weak) ==
  Decided([client EXCEPT !.denied = IF is_weak THEN @ ELSE @ \cup {index}, !.weak = IF is_weak THEN @ \cup {index} ELSE @])

BackQuorum == IF Holds("R4 back") THEN Qa ELSE 1

RECURSIVE Written(_, _, _)
Written(r, client, id) ==
  IF id + 1 < client.next /\ IsAcked(r, client, id + 1, BackQuorum) THEN Written(r, client, id + 1) ELSE id

FrozenProof(r, client) ==                                                                    \* R5
  IF Holds("R5") THEN client.start ELSE [client.start EXCEPT !.id = Written(r, client, client.lac)]

HearRead(r, index, id, says, entry) ==
  LET client == clients[r] IN
  IF client.stage # "READING" \/ id # client.next THEN UNCHANGED <<clients, adds>>
  ELSE IF says = "found"
  THEN /\ clients' = [clients EXCEPT ![r] = ReadFound(client, entry)]
       /\ adds' = adds \cup Sends(r, client.term, {entry}, Indices, client.ens, FrozenProof(r, client))
  ELSE /\ clients' = [clients EXCEPT ![r] = ReadDenied(client, index, says = "weak")]
       /\ adds' = adds

BookieAnswersRead(r, index) ==                                                               \* R4, R9
  LET client == clients[r]
      asked == IF Holds("R9") THEN client.frozen.ensemble ELSE client.ens
      b == asked[index]
      found == {e \in stored[b] : e.id = client.next /\ (e.stamp = client.frozen.term \/ ~Holds("T3"))}
      denial == IF doubt[b] /\ Holds("R10 weak") THEN "weak" ELSE "denied"
      may_say == IF found = {} THEN {denial} ELSE IF Holds("R4 unknown") THEN {"found"} ELSE {"found", "denied"}
  IN
  /\ client.stage = "READING"
  /\ index \in WriteSet(client.next)
  /\ index \notin client.denied \cup client.weak
  /\ b \notin declared
  /\ client.term >= fence[b]
  /\ fence' = IF Holds("R4 fence") THEN Raised(b, client.term) ELSE fence
  /\ \E says \in may_say : \E e \in (IF says = "found" THEN found ELSE {NoClaim}) :
       IF LateAnswers
       THEN /\ answers' = answers \cup
                 {[to |-> r, about |-> "read", at |-> index, id |-> client.next, says |-> says, with |-> e]}
            /\ UNCHANGED <<clients, adds>>
       ELSE /\ answers' = answers
            /\ HearRead(r, index, client.next, says, e)
  /\ UNCHANGED <<meta, cas, stored, claim, doubt, declared, acks, faults, history>>

RecoveryHears(answer) ==
  /\ LateAnswers
  /\ IF answer.about = "fence"
     THEN clients' = [clients EXCEPT ![answer.to] = FenceHeard(clients[answer.to], answer.at, answer.with)] /\ adds' = adds
     ELSE HearRead(answer.to, answer.at, answer.id, answer.says, answer.with)
  /\ UNCHANGED <<meta, cas, fence, stored, claim, doubt, declared, acks, answers, faults, history>>

RecoveryChangesEnsemble(r, index, b, through) ==                                             \* R6
  LET client == [clients[r] EXCEPT !.lac = through, !.sent = {e \in @ : e.id > through},
                                   !.kept = {pair \in @ : pair[2] > through}]
      ens == [client.ens EXCEPT ![index] = b]
      fragment == [first |-> client.lac + 1, ensemble |-> ens, term |-> client.frozen.term]
      private == IF client.private = <<>> THEN <<fragment>> ELSE WithFragment(client.private, fragment)
      published == [meta EXCEPT !.fragments = WithFragment(@, fragment), !.version = @ + 1]
      kept == IF Holds("R6 resend") THEN {} ELSE client.kept \cup KeptAt(r, client, {index})
  IN
  /\ client.stage \in {"READING", "WRITING"}
  /\ client.changes < PrivateMax
  /\ client.sent # {}
  /\ b \notin Members(client.ens)
  /\ b \notin declared
  /\ IF Holds("R6 private") THEN meta' = meta ELSE meta.version = client.version /\ meta' = published
  /\ clients' = [clients EXCEPT ![r] = [client EXCEPT !.ens = ens, !.private = private, !.kept = kept,
       !.changes = @ + 1, !.version = IF Holds("R6 private") THEN @ ELSE meta'.version]]
  /\ adds' = adds \cup Sends(r, client.term, client.sent, {index}, ens, FrozenProof(r, client))
  /\ history' = Recorded(meta')
  /\ UNCHANGED <<cas, fence, stored, claim, doubt, declared, acks, answers, faults>>

\* A copy that is late goes to `ens` again; the entries of the private fragments that were written through keep their place.
RecoveryEnds(r) ==
  LET client == clients[r]
      fragments == WithFragments(meta.fragments, client.private)
      next == [first |-> client.end + 1, ensemble |-> client.ens, term |-> client.term]
      record == IF Unbounded
                THEN [meta EXCEPT !.state = "OPEN", !.fragments = WithFragment(fragments, next),
                                  !.version = @ + 1]
                ELSE ClosedAt([meta EXCEPT !.fragments = fragments], client.end)
      is_current == meta.state = "IN_RECOVERY" /\ Last(meta.fragments) = client.frozen /\ meta.term = client.term
      may_write == \/ meta.version = client.version
                   \/ is_current                  \* a repair changed an earlier fragment: adopted, and proposed again (F4)
                   \/ ~Holds("R6 cas")
      \* Without the nonce a record that another takeover of the same term opened is taken for one's own.
      is_mistaken == ~Holds("M1 nonce") /\ meta.state = "OPEN" /\ meta.term = client.term
  IN
  /\ client.stage = "WRITING"
  /\ Written(r, client, client.lac) >= client.end
  /\ IF may_write
     THEN /\ meta' = record
          /\ history' = Recorded(record)
          /\ clients' = [clients EXCEPT ![r] =
               IF Unbounded THEN Writing("STEADY", client.term, record.version, client.ens, client.end)
               ELSE Ended("RECOVERED", NoEntry)]
     ELSE /\ clients' = [clients EXCEPT ![r] =
               IF is_mistaken THEN Writing("STEADY", client.term, meta.version, Last(meta.fragments).ensemble, client.end)
               ELSE Ended(IF meta.state = "CLOSED" THEN "RECOVERED" ELSE "FENCED", NoEntry)]
          /\ UNCHANGED <<meta, history>>
  /\ UNCHANGED <<cas, fence, stored, claim, doubt, declared, adds, acks, answers, faults>>

\* A fence that arrives after its recovery went on.
LateFence(r, b) ==
  /\ LateAnswers
  /\ clients[r].stage \in {"READING", "WRITING"}
  /\ b \in Members(clients[r].frozen.ensemble)
  /\ fence[b] < clients[r].term
  /\ fence' = Raised(b, clients[r].term)
  /\ UNCHANGED <<meta, cas, clients, stored, claim, doubt, declared, adds, acks, answers, faults, history>>

----------------------------------------------------------------------------- 
\* Filling (protocol/filling.py): all copies that anybody has were stored at `b`, then one compare-and-set names it (F1, F2, F4).

LastOf(k) == IF k < Len(meta.fragments) THEN meta.fragments[k + 1].first - 1 ELSE meta.last

FillerReplaces(k, index, b) ==
  LET fragment == meta.fragments[k]
      wanted == {id \in fragment.first .. LastOf(k) : index \in WriteSet(id)}
      everywhere == UNION {stored[fragment.ensemble[i]] : i \in Indices}
      all == {e \in everywhere : e.id \in wanted /\ e.stamp = fragment.term}
      copied == IF Holds("F1") THEN all ELSE {}
      record == [meta EXCEPT !.fragments[k].ensemble[index] = b, !.version = @ + 1]
  IN
  /\ faults.repairs < RepairsMax
  /\ b \notin Members(fragment.ensemble) /\ b \notin declared
  /\ k < Len(meta.fragments) \/ meta.state = "CLOSED" \/ ~Holds("F2")
  /\ meta.term >= fence[b]
  /\ stored' = [stored EXCEPT ![b] = @ \cup copied]
  /\ fence' = Raised(b, meta.term)                                                           \* F2: the record's term, never more
  /\ meta' = record
  /\ history' = Recorded(record)
  /\ faults' = [faults EXCEPT !.repairs = @ + 1]
  /\ UNCHANGED <<cas, clients, claim, doubt, declared, adds, acks, answers>>

----------------------------------------------------------------------------- 
\* Trimming (client/terms.py) and dropping (protocol/releasing.py)

\* By anybody, in any state of the ledger. The last fragment stays.
Trims ==
  /\ faults.trims < TrimsMax
  /\ faults.trims + 1 < Len(meta.fragments)
  /\ meta' = [meta EXCEPT !.version = @ + 1]
  /\ faults' = [faults EXCEPT !.trims = @ + 1]
  /\ UNCHANGED <<cas, clients, fence, stored, claim, doubt, declared, adds, acks, answers, history>>

\* It reads the record, proves that it is current, and drops: one step here.
BookieDrops(b, e) ==                                                                         \* F5
  LET place == Place(meta.fragments, e.id)
      fragment == meta.fragments[place]
      is_fixed == place < Len(meta.fragments) \/ meta.state = "CLOSED"
      is_named == \E i \in WriteSet(e.id) : fragment.ensemble[i] = b
  IN
  /\ meta.state # "IN_RECOVERY"
  /\ meta.term >= fence[b]
  /\ \/ e.id < TrimTo
     \/ e.stamp < fragment.term
     \/ e.stamp = fragment.term /\ ~is_named /\ (is_fixed \/ ~Holds("F5"))
  /\ stored' = [stored EXCEPT ![b] = @ \ {e}]
  /\ UNCHANGED <<meta, cas, clients, fence, claim, doubt, declared, adds, acks, answers, faults, history>>

----------------------------------------------------------------------------- 

Next ==
  \/ \E m \in adds : BookieAccepts(m)
  \/ MayPublish /\ \E b \in Bookies, c \in Clients : BookieHearsConfirmed(b, c)
  \/ faults.losses < LossesMax /\ \E b \in Bookies : \E kept \in SUBSET stored[b] : BookieLoses(b, kept)
  \/ ~Holds("R3") /\ \E b \in Bookies : BookieForgetsFence(b)
  \/ Cardinality(declared) < DeclaredMax /\ \E b \in Bookies : OperatorDeclaresLost(b)
  \/ \E c \in Clients :
       /\ IsWriter(c)
       /\ \/ WriterAdds(c)
          \/ \E last \in clients[c].lac + 1 .. clients[c].pushed : WriterConfirms(c, last)
          \/ MayEnd /\ WriterIsFenced(c)
          \/ /\ clients[c].stage = "STEADY" /\ clients[c].changes < ChangesMax
             /\ \E ens \in Ensembles : WriterProposesEnsemble(c, ens)
          \/ RollsMax > 0 /\ WriterRolls(c)
          \/ MayClose /\ WriterProposesEnd(c)
          \/ WriterLearnsChange(c)
          \/ WriterTimesOut(c)
          \/ WriterMeetsConflict(c)
          \/ (MayEnd \/ RepairsMax > 0 \/ TrimsMax > 0) /\ WriterFindsRecordChanged(c)
          \/ WriterLearnsEnd(c)
  \/ SlowMetastore /\ \E c \in Clients : MetastoreApplies(c)
  \/ \E r \in Recoveries :
       \/ RecoveryClaims(r)
       \/ /\ clients[r].stage \in {"FENCING", "READING", "WRITING"}
          /\ \/ \E index \in Indices : BookieAnswersFence(r, index) \/ BookieAnswersRead(r, index)
             \/ /\ clients[r].changes < PrivateMax
                /\ \E through \in clients[r].lac .. Written(r, clients[r], clients[r].lac) :
                     \E index \in Indices, b \in Bookies : RecoveryChangesEnsemble(r, index, b, through)
             \/ RecoveryEnds(r)
             \/ LateAnswers /\ \E b \in Bookies : LateFence(r, b)
  \/ \E answer \in answers : RecoveryHears(answer)
  \/ /\ faults.repairs < RepairsMax
     /\ \E k \in 1 .. Len(meta.fragments), index \in Indices, b \in Bookies : FillerReplaces(k, index, b)
  \/ TrimsMax > 0 /\ Trims
  \/ MayDrop /\ \E b \in Bookies : \E e \in stored[b] : BookieDrops(b, e)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------- 
\* What must hold

ConfirmedThrough ==
  LET known == {clients[c].lac : c \in {d \in Clients : IsWriter(d) \/ clients[d].stage \in {"CLOSED", "FENCED"}}} IN
  CHOOSE n \in known \cup {NoEntry} : \A m \in known : n >= m

CopiesOf(id) ==
  LET fragment == FragmentOf(meta.fragments, id) IN
  {i \in WriteSet(id) : \E e \in stored[fragment.ensemble[i]] : e.id = id /\ e.stamp = fragment.term}

\* I1, R7: a closed ledger ends behind everything that a writer confirmed, and that anybody can prove to a reader.
NothingConfirmedIsCutOff ==
  meta.state = "CLOSED" => /\ ConfirmedThrough <= meta.last
                           /\ \A b \in Bookies : claim[b].id <= meta.last

\* I2, O2: what was confirmed is on a bookie where the record says it is, unless it was trimmed.
ConfirmedIsReadable == \A id \in TrimTo .. ConfirmedThrough : CopiesOf(id) # {}

\* I3: without losses it is on an ack quorum, once the ledger is closed, and in each fragment that has a successor.
ClosedIsAtAckQuorum ==
  LossesMax = 0 =>
    \A id \in TrimTo .. (IF meta.state = "CLOSED" THEN meta.last ELSE Last(meta.fragments).first - 1) :
      Cardinality(CopiesOf(id)) >= Qa

\* I2, C9: also while the ledger is open, and whichever change of its record is under way.
ConfirmedIsAtAckQuorum ==
  LossesMax = 0 => \A id \in TrimTo .. ConfirmedThrough : Cardinality(CopiesOf(id)) >= Qa

\* I5
FragmentsAreValid ==
  /\ meta.fragments[1].first = 0
  /\ \A k \in 2 .. Len(meta.fragments) :
       /\ meta.fragments[k - 1].first < meta.fragments[k].first
       /\ meta.fragments[k - 1].term <= meta.fragments[k].term
  /\ \A k \in 1 .. Len(meta.fragments) : Cardinality(Members(meta.fragments[k].ensemble)) = E

\* O9, T3: an identity has one payload, on all disks.
OnePayload ==
  LET all == UNION {stored[b] : b \in Bookies} IN
  \A e, f \in all : e.id = f.id /\ e.stamp = f.stamp => e = f

\* R1: a writer that says that it closed the ledger closed it at what it confirmed.
CloserAgrees ==
  \A c \in Clients : clients[c].stage = "CLOSED" => meta.state = "CLOSED" /\ meta.last = clients[c].lac

\* I6, W5: what bookies prove to be confirmed can be read.
ProvenIsReadable == \A b \in Bookies : \A id \in TrimTo .. claim[b].id : CopiesOf(id) # {}

\* O8: the end of a closed ledger is final, versions and terms rise, and a fragment that has a successor changes by repairs only.
RecordsGoForward ==
  [][/\ meta.state = "CLOSED" => meta'.state = "CLOSED" /\ meta'.last = meta.last
     /\ meta'.version >= meta.version /\ meta'.term >= meta.term
     /\ \A k \in 1 .. Len(meta.fragments) - 1 :
          k <= Len(meta'.fragments) /\ meta'.fragments[k].first = meta.fragments[k].first
                                    /\ meta'.fragments[k].term = meta.fragments[k].term]_vars

\* O1, O6 (unbounded): a reader with any record that it ever read, and any proof that it ever got, reads what the log says.
ReadersAgree ==
  Unbounded =>
    \A known \in history.records, proof \in history.claims :
      FragmentOf(known, proof.id).term = proof.stamp \/ (~Holds("D1 stamp") /\ proof.id >= 0) =>
        \A id \in 0 .. proof.id :
          LET fragment == FragmentOf(known, id) IN
          \A i \in WriteSet(id) : \A e \in stored[fragment.ensemble[i]] :
            e.id = id /\ e.stamp = fragment.term => e.stamp = FragmentOf(meta.fragments, id).term

\* What must come about: TLC finds a state in which such a formula is false.
NeverRecoversFromConfirmed ==
  ~(meta.state = "CLOSED" /\ meta.last = 1 /\ (\E b \in Bookies : claim[b].id = 0)
    /\ (\E r \in Recoveries : clients[r].stage = "RECOVERED") /\ clients[Creator].lac = 0)
NeverReplacesInPlace == ~(\E c \in Clients : clients[c].changes > 0 /\ Len(meta.fragments) = 1 /\ clients[c].lac >= 0)
NeverMovesOn == ~(meta.state = "CLOSED" /\ Len(meta.fragments) = 2 /\ meta.last = 1 /\ ChangesMax = 0)
NeverTrimsAndTakesOver ==
  ~(faults.trims > 0 /\ meta.state = "OPEN" /\ (\A b \in Bookies : \A e \in stored[b] : e.id > 0)
    /\ \E r \in Recoveries : clients[r].stage = "STEADY" /\ clients[r].lac = 1)
NeverConfirmsInChange ==
  ~(\E c \in Clients : clients[c].stage = "CHANGING" /\ \E e \in clients[c].sent : e.id <= clients[c].lac)
NeverDeposes == ~(clients[Creator].lac = 0 /\ \E r \in Recoveries : clients[r].fenced # {})

\* What comes after the end, when nobody has anything left to do, is not looked at.
IsGoingOn ==
  \/ meta.state # "CLOSED"
  \/ \E c \in Clients : clients[c].stage \in {"STEADY", "CHANGING", "CLOSING", "FENCING", "READING", "WRITING"}

TypeOK ==
  /\ meta.state \in {"OPEN", "IN_RECOVERY", "CLOSED"}
  /\ \A b \in Bookies : fence[b] \in Nat /\ claim[b].id >= NoEntry
  /\ \A c \in Clients : clients[c].lac >= NoEntry

Symmetry == Permutations(Bookies) \cup Permutations(Recoveries)
=============================================================================
