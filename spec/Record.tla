-------------------------------- MODULE Record --------------------------------
(* The record of a ledger that is rolled, trimmed and repaired, while its old fragments are in index chunks (rule M4), as
`replog.protocol.chunks` and `replog.client.ledger_records` build it.

A fragment is a number, and what it says is how often a repair has changed it. A chunk has up to two fragments of one pair; those
behind the last whole pair are in the record's head. A chunk has a name, and what is stored under the name.

Requests to the metastore are lost, late or done twice: creations and deletions of chunks are sets from which nothing is ever
taken, and each may be done at any later time, any number of times, or never. A client that takes no further step has crashed.

`Removed` names rules that are left out, to see that something breaks without them. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Clients,      \* each reads, changes and repairs
  FragmentsMax, \* the last fragment that is ever begun
  FillsMax,     \* how often a repair changes one fragment
  ChangesMax,   \* changes that clients propose, together
  CollectsMax,  \* passes of the garbage collection of chunks
  Removed       \* rules that are left out

VARIABLES
  meta,      \* the record: its version, and what it names
  stored,    \* chunks in the metastore: name and contents
  creates,   \* all creations that were ever sent
  deletes,   \* all deletions that were ever sent
  clients,   \* by client: what it does
  truth,     \* what the record must say: each fragment that was not trimmed, and how often it was changed
  counts,    \* how many changes were proposed, and how often garbage was collected
  isCorrupt  \* TRUE: a client reported that the metastore has lost a chunk

vars == <<meta, stored, creates, deletes, clients, truth, counts, isCorrupt>>

-----------------------------------------------------------------------------
Holds(rule) == rule \notin Removed
Last(whole) == CHOOSE n \in DOMAIN whole : \A m \in DOMAIN whole : n >= m
First(whole) == CHOOSE n \in DOMAIN whole : \A m \in DOMAIN whole : n <= m
Pair(n) == {m \in 1 .. FragmentsMax : (m + 1) \div 2 = (n + 1) \div 2}

\* A pair leaves the head once both are there, and a later fragment is.
Packed(whole) == {n \in DOMAIN whole : \A m \in Pair(n) : m < Last(whole)}
Contents(whole, n) == [m \in Pair(n) \cap DOMAIN whole |-> whole[m]]
Name(contents, version) ==
  [of |-> DOMAIN contents,
   version |-> IF Holds("M4 version") THEN version ELSE 0,
   digest |-> IF Holds("M4 digest") THEN contents ELSE <<>>]

\* What a record says, that is made of this upon a version: chunks that say the same keep their names.
RecordOf(whole, record, known) ==
  LET kept(n) == {each \in known : each.name \in record.chunks /\ each.contents = Contents(whole, n)}
      named(n) == IF kept(n) # {} THEN kept(n) ELSE {[name |-> Name(Contents(whole, n), record.version), contents |-> Contents(whole, n)]}
  IN UNION {named(n) : n \in Packed(whole)}

HeadOf(whole) == [n \in DOMAIN whole \ Packed(whole) |-> whole[n]]

\* All fragments of a record, with what is stored.
WholeOf(record, chunks) ==
  LET found == {each \in chunks : each.name \in record.chunks}
      all == DOMAIN record.head \cup UNION {DOMAIN each.contents : each \in found}
  IN [n \in all |-> IF n \in DOMAIN record.head THEN record.head[n]
                    ELSE (CHOOSE each \in found : n \in DOMAIN each.contents).contents[n]]
HasAll(record, chunks) == \A name \in record.chunks : \E each \in chunks : each.name = name

Idle == [stage |-> "IDLE", record |-> <<>>, whole |-> <<>>, known |-> {}, new |-> {}, next |-> <<>>, dead |-> {}]

Init ==
  LET whole == [n \in 1 .. 3 |-> 0]
      start == [version |-> 0, head |-> <<>>, chunks |-> {}]
      chunks == RecordOf(whole, start, {})
  IN
  /\ meta = [version |-> 1, head |-> HeadOf(whole), chunks |-> {each.name : each \in chunks}]
  /\ stored = chunks
  /\ creates = {}
  /\ deletes = {}
  /\ clients = [c \in Clients |-> Idle]
  /\ truth = whole
  /\ counts = [changes |-> 0, collects |-> 0]
  /\ isCorrupt = FALSE

-----------------------------------------------------------------------------
\* The metastore

Creates == \E chunk \in creates :
  /\ \A each \in stored : each.name # chunk.name      \* a key that exists stays as it is
  /\ stored' = stored \cup {chunk}
  /\ UNCHANGED <<meta, creates, deletes, clients, truth, counts, isCorrupt>>

Deletes == \E name \in deletes :
  /\ \E each \in stored : each.name = name
  /\ stored' = {each \in stored : each.name # name}
  /\ UNCHANGED <<meta, creates, deletes, clients, truth, counts, isCorrupt>>

-----------------------------------------------------------------------------
\* Clients

ReadsHead(c) ==
  /\ clients[c].stage = "IDLE"
  /\ clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.stage = "HEAD", !.record = meta]]
  /\ UNCHANGED <<meta, stored, creates, deletes, truth, counts, isCorrupt>>

\* A chunk that is missing: whoever changes a record deletes what it named before, so there is a newer one.
LoadsChunks(c) ==
  LET record == clients[c].record IN
  /\ clients[c].stage = "HEAD"
  /\ IF HasAll(record, stored)
     THEN /\ clients' = [clients EXCEPT ![c].stage = "WHOLE", ![c].whole = WholeOf(record, stored),
                                        ![c].known = {each \in stored : each.name \in record.chunks}]
          /\ isCorrupt' = isCorrupt
     ELSE /\ clients' = [clients EXCEPT ![c] = Idle]
          /\ isCorrupt' = (isCorrupt \/ meta.version = record.version \/ ~Holds("M4 reread"))
  /\ UNCHANGED <<meta, stored, creates, deletes, truth, counts>>

Rolled(whole) == [n \in DOMAIN whole \cup {Last(whole) + 1} |-> IF n \in DOMAIN whole THEN whole[n] ELSE 0]
Trimmed(whole, before) == [n \in {m \in DOMAIN whole : m >= before} |-> whole[n]]
Filled(whole, n) == [whole EXCEPT ![n] = @ + 1]

Changed(whole) ==
  (IF Last(whole) < FragmentsMax THEN {Rolled(whole)} ELSE {})
  \cup {Trimmed(whole, n) : n \in {m \in DOMAIN whole : m > First(whole)}}
  \cup {Filled(whole, n) : n \in {m \in DOMAIN whole : m < Last(whole) /\ whole[m] < FillsMax}}

Proposes(c) ==
  LET client == clients[c] IN
  /\ client.stage = "WHOLE"
  /\ counts.changes < ChangesMax
  /\ \E whole \in Changed(client.whole) :
       LET chunks == RecordOf(whole, client.record, client.known)
           names == {each.name : each \in chunks}
           new == {each \in chunks : each.name \notin client.record.chunks}
           dead == client.record.chunks \ names
       IN
       /\ clients' = [clients EXCEPT ![c].stage = "WRITING", ![c].new = new, ![c].dead = dead, ![c].whole = whole,
            ![c].next = [version |-> client.record.version + 1, head |-> HeadOf(whole), chunks |-> names]]
       /\ creates' = creates \cup new
       /\ deletes' = IF Holds("M4 after") THEN deletes ELSE deletes \cup dead
  /\ counts' = [counts EXCEPT !.changes = @ + 1]
  /\ UNCHANGED <<meta, stored, truth, isCorrupt>>

\* The compare-and-set, once the metastore has answered that the new chunks exist: written by whom ever.
Changes(c) ==
  LET client == clients[c]
      exist == \A new \in client.new : \E each \in stored : each.name = new.name
  IN
  /\ client.stage = "WRITING"
  /\ exist \/ ~Holds("M4 before")
  /\ IF meta.version = client.record.version
     THEN /\ meta' = client.next
          /\ truth' = client.whole
          /\ deletes' = deletes \cup client.dead
     ELSE UNCHANGED <<meta, truth, deletes>>
  /\ clients' = [clients EXCEPT ![c] = Idle]
  /\ UNCHANGED <<stored, creates, counts, isCorrupt>>

\* Garbage collection of chunks: the names are listed, and then the record is read.
Lists(c) ==
  /\ clients[c].stage = "IDLE"
  /\ counts.collects < CollectsMax
  /\ clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.stage = "LISTED", !.dead = {each.name : each \in stored}]]
  /\ counts' = [counts EXCEPT !.collects = @ + 1]
  /\ UNCHANGED <<meta, stored, creates, deletes, truth, isCorrupt>>

Collects(c) ==
  /\ clients[c].stage = "LISTED"
  /\ deletes' = deletes \cup {name \in clients[c].dead :
       /\ name \notin meta.chunks
       /\ name.version < meta.version \/ ~Holds("M4 collect")}
  /\ clients' = [clients EXCEPT ![c] = Idle]
  /\ UNCHANGED <<meta, stored, creates, truth, counts, isCorrupt>>

Next ==
  \/ Creates
  \/ Deletes
  \/ \E c \in Clients : ReadsHead(c) \/ LoadsChunks(c) \/ Proposes(c) \/ Changes(c) \/ Lists(c) \/ Collects(c)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* What must hold

\* Whatever the record names exists.
NamedExists == HasAll(meta, stored)

\* Each fragment that was not trimmed is in the record exactly once, as it was last changed.
NoFragmentIsLost == NamedExists => WholeOf(meta, stored) = truth
NoFragmentIsTwice ==
  /\ \A name \in meta.chunks : name.of \cap DOMAIN meta.head = {}
  /\ \A one, other \in meta.chunks : one # other => one.of \cap other.of = {}

\* Nobody reports that the metastore has lost something, since it has not.
NobodyIsAlarmed == ~isCorrupt

\* Goals: TLC finds a state in which such a formula is false.
NeverTrimsAChunkInTwo == ~(\E name \in meta.chunks : Cardinality(name.of) = 1)
NeverLeavesGarbage == ~(\E each \in stored : each.name \notin meta.chunks /\ each.name.version < meta.version /\ each.name \notin deletes)

Symmetry == Permutations(Clients)
===============================================================================
