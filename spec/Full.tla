--------------------------------- MODULE Full ---------------------------------
(* The guaranteed write quorum of a ledger (rule W8), as `replog.client.completing` and `replog.protocol.filling` build it: a close, a
roll or a takeover ends only when all bookies of what lies before it have said that they hold it, and the record remembers how
far that is, so that nobody asks again.

A fragment has one entry here, and is its number. What is known of it is which indices of its ensemble hold the entry: adds arrive
late or never, fillers copy, and repairs replace bookies. A client that takes no further step has crashed.

`Removed` names rules that are left out, to see that something breaks without them. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Clients,      \* each rolls, takes over or closes, and waits for copies
  Qw, Qa,       \* write quorum, ack quorum; E = Qw
  FragmentsMax, \* the last one that is ever begun
  RepairsMax,   \* how often a bookie is replaced
  Removed       \* rules that are left out

VARIABLES
  begun,    \* fragments that were begun; the last one is written to
  held,     \* by fragment: the indices that hold its entry
  mark,     \* the record says that all fragments up to this one are full
  clients,  \* by client: what it does
  told,     \* a user was told that all fragments up to this one are full
  repairs   \* how many bookies were replaced

vars == <<begun, held, mark, clients, told, repairs>>

-----------------------------------------------------------------------------
Holds(rule) == rule \notin Removed
Indices == 1 .. Qw
Max(a, b) == IF a >= b THEN a ELSE b
Idle == [stage |-> "IDLE", since |-> 0, end |-> 0, heard |-> {}]

Init ==
  /\ begun = 1
  /\ held = [k \in 1 .. FragmentsMax |-> {}]
  /\ mark = 0
  /\ clients = [c \in Clients |-> Idle]
  /\ told = 0
  /\ repairs = 0

AddArrives(k, index) ==
  /\ k <= begun
  /\ index \notin held[k]
  /\ held' = [held EXCEPT ![k] = @ \cup {index}]
  /\ UNCHANGED <<begun, mark, clients, told, repairs>>

\* A roll or a takeover fixes the last fragment, whose entry is at its ack quorum, and begins the next one (C2, R4).
Rolls(c) ==
  /\ clients[c].stage = "IDLE"
  /\ begun < FragmentsMax
  /\ Cardinality(held[begun]) >= Qa
  /\ begun' = begun + 1
  /\ clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.stage = "ASKING", !.since = mark, !.end = begun]]
  /\ mark' = IF Holds("W8 mark") THEN mark ELSE begun
  /\ UNCHANGED <<held, told, repairs>>

\* What a bookie says that it holds; an acknowledgement of the ack quorum is not enough.
Hears(c, k, index) ==
  /\ clients[c].stage = "ASKING"
  /\ k \in clients[c].since + 1 .. clients[c].end
  /\ index \in held[k] \/ (~Holds("W8 asked") /\ Cardinality(held[k]) >= Qa)
  /\ <<k, index>> \notin clients[c].heard
  /\ clients' = [clients EXCEPT ![c].heard = @ \cup {<<k, index>>}]
  /\ UNCHANGED <<begun, held, mark, told, repairs>>

FillerCopies(c, k, index) ==
  /\ clients[c].stage = "ASKING"
  /\ k \in clients[c].since + 1 .. clients[c].end
  /\ index \notin held[k] /\ held[k] # {}
  /\ held' = [held EXCEPT ![k] = @ \cup {index}]
  /\ UNCHANGED <<begun, mark, clients, told, repairs>>

Tells(c) ==
  LET client == clients[c]
      asked == (IF Holds("W8 all") THEN client.since + 1 .. client.end ELSE {client.end}) \X Indices IN
  /\ client.stage = "ASKING"
  /\ asked \subseteq client.heard
  /\ told' = Max(told, client.end)
  /\ clients' = [clients EXCEPT ![c].stage = "FULL"]
  /\ UNCHANGED <<begun, held, mark, repairs>>

\* The mark goes into the record with a later change: only as far as this client has heard.
Marks(c) ==
  /\ clients[c].stage = "FULL"
  /\ mark' = Max(mark, IF Holds("W8 own") THEN clients[c].end ELSE begun - 1)
  /\ clients' = [clients EXCEPT ![c] = Idle]
  /\ UNCHANGED <<begun, held, told, repairs>>

\* Somebody replaces the bookie at an index of a fixed fragment, once the new one holds what anybody has (F1).
Replaces(k, index) ==
  /\ k < begun
  /\ repairs < RepairsMax
  /\ held' = IF Holds("W8 copied") THEN [held EXCEPT ![k] = @ \cup {index}] ELSE [held EXCEPT ![k] = @ \ {index}]
  /\ repairs' = repairs + 1
  /\ UNCHANGED <<begun, mark, clients, told>>

Next ==
  \/ \E k \in 1 .. FragmentsMax, index \in Indices : AddArrives(k, index) \/ Replaces(k, index)
  \/ \E c \in Clients :
       \/ Rolls(c) \/ Tells(c) \/ Marks(c)
       \/ \E k \in 1 .. FragmentsMax, index \in Indices : Hears(c, k, index) \/ FillerCopies(c, k, index)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
IsFull(k) == held[k] = Indices

\* W8: what a user was told to be at its full write quorum is.
ToldIsFull == \A k \in 1 .. told : IsFull(k)
\* Copies below a mark that is too high would never be looked for.
MarkedIsFull == \A k \in 1 .. mark : IsFull(k)

\* Goals: TLC finds a state in which such a formula is false.
NeverTellsBeforeTheLastIsFull == ~(told >= 1 /\ begun > told + 1 /\ ~IsFull(told + 1))

Symmetry == Permutations(Clients)
===============================================================================
