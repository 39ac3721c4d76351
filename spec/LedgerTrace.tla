----------------------------- MODULE LedgerTrace ------------------------------
(* Accepts what the code did: each trace is what the machines of one ledger said and heard, in its order, as
`tests/spec/recording.py` writes it down. Every event must be a step that `Ledger` allows; after each step the invariants hold.
With `Unbounded` a takeover has a term of its own, and goes on as the writer; what was trimmed stays in `meta`, and `trimmed` says
how many fragments the record has lost.

Differences to `Ledger`, all of them because the code does several steps at once: an event is about a batch, so about a set of
ids; a recovery takes a whole batch, and may so write back ids behind the end; what it heard it may hear any time later; the
writer moves to its new ensemble between the metastore's change and its own next step.

`Traces` is in the module TraceData, which is made for each run. An event that no step allows prints the trace and the place. *)
EXTENDS Ledger, TraceData

VARIABLES trace, at, stuck, trimmed

tvars == <<vars, trace, at, stuck, trimmed>>
Events == Traces[trace].events
Event == Events[at]
Ens(names) == [i \in Indices |-> names[i + 1]]
Frag(given) == [first |-> given[1], ensemble |-> Ens(given[2]), term |-> given[3]]
Frags(given) == [k \in 1 .. Len(given) |-> Frag(given[k])]
Shown(fragments) == SubSeq(fragments, trimmed + 1, Len(fragments))
Named(given) == {given[k] : k \in 1 .. Len(given)}
IdsOf(entries) == {e.id : e \in entries}
Quiet == UNCHANGED <<doubt, declared, answers, faults, history, trimmed>>

\* The first fragment that a closed record names stays there, even if it holds no entry.
EndedAt(record, last) ==
  LET kept == {k \in 1 .. Len(record.fragments) : k <= trimmed + 1 \/ record.fragments[k].first <= last} IN
  [record EXCEPT !.state = "CLOSED", !.last = last, !.version = @ + 1, !.fragments = SubSeq(@, 1, Cardinality(kept))]

TraceInit ==
  /\ trace \in 1 .. Len(Traces)
  /\ at = 1
  /\ stuck = FALSE
  /\ trimmed = 0
  /\ meta = [version |-> 1, state |-> "OPEN", term |-> 1, last |-> NoEntry,
             fragments |-> <<[first |-> 0, ensemble |-> Ens(Traces[trace].ensemble), term |-> 1]>>]
  /\ cas = [c \in Clients |-> NoCas]
  /\ clients = [c \in Clients |->
       IF c = Creator THEN Writing("STEADY", 1, 1, Ens(Traces[trace].ensemble), NoEntry) ELSE Ended("NEW", NoEntry)]
  /\ fence = [b \in Bookies |-> 0]
  /\ stored = [b \in Bookies |-> {}]
  /\ claim = [b \in Bookies |-> NoClaim]
  /\ doubt = [b \in Bookies |-> FALSE]
  /\ declared = {} /\ adds = {} /\ acks = {} /\ answers = {}
  /\ faults = [losses |-> 0, lies |-> 0, repairs |-> 0, rolls |-> 0, trims |-> 0]
  /\ history = [records |-> {}, claims |-> {NoClaim}]

\* The writer after the metastore's change, if that was made: it learns of it before its next step (C3).
Current(c) ==
  LET client == clients[c] IN
  IF client.stage = "CHANGING" /\ cas[c].stage = "written"
  THEN [client EXCEPT !.stage = "STEADY", !.ens = client.wanted, !.wanted = <<>>]
  ELSE client
Learned(c) == IF Current(c) = clients[c] THEN cas ELSE [cas EXCEPT ![c] = NoCas]

WriterSends(c, b, i, ids, confirmed) ==                                                          \* W1, W3, C3
  LET client == Current(c)
      known == {e \in client.sent : e.id \in ids}
      new == {[id |-> id, stamp |-> client.term, by |-> c, lac |-> confirmed,
               lac_stamp |-> IF confirmed = NoEntry THEN 0 ELSE client.term] : id \in ids \ IdsOf(known)}
  IN
  /\ client.stage \in {"STEADY", "CHANGING"}
  /\ client.ens[i] = b
  /\ i \notin Replaced(client)
  /\ \A id \in ids : i \in WriteSet(id)
  \* What was confirmed during a change is sent to the bookies that it brought in (C9).
  /\ \A id \in ids : id > client.lac \/ id >= Last(meta.fragments).first
  /\ \A e \in known : e.lac = confirmed
  /\ confirmed <= client.lac
  /\ adds' = adds \cup {[to |-> b, at |-> i, entry |-> e, from |-> c, term |-> client.term, proof |-> NoClaim] : e \in known \cup new}
  /\ clients' = [clients EXCEPT ![c] = [client EXCEPT !.sent = @ \cup new,
       !.pushed = IF new = {} THEN @ ELSE Max(@, CHOOSE id \in IdsOf(new) : \A other \in IdsOf(new) : id >= other)]]
  /\ cas' = Learned(c)
  /\ UNCHANGED <<meta, fence, stored, claim, acks>> /\ Quiet

TraceConfirms(c, last) ==                                                                    \* W2, C1, C5, C6, C9, R1
  LET client == Current(c) IN
  /\ client.stage \in {"STEADY", "CHANGING"} /\ ~IsFrozen(client)
  /\ last > client.lac
  /\ \A id \in client.lac + 1 .. last : id \in IdsOf(client.sent) /\ IsCounted(c, client, id, Qa)
  /\ clients' = [clients EXCEPT ![c] = [client EXCEPT !.lac = last]]
  /\ cas' = Learned(c)
  /\ UNCHANGED <<meta, fence, stored, claim, adds, acks>> /\ Quiet

TraceProposesEnsemble(c, first, ens) ==                                                       \* C2
  LET client == Current(c)
      fragment == [first |-> first, ensemble |-> ens, term |-> client.term]
      \* A proposal whose answer was lost is made again, and the record shows that it was written (M1).
      stage == IF Last(meta.fragments) = fragment THEN "written" ELSE "sent"
  IN
  /\ client.stage \in {"STEADY", "CHANGING"}
  \* A repeat is the same, whatever was confirmed since (C9).
  /\ first = client.lac + 1 \/ stage = "written" \/ (client.stage = "CHANGING" /\ cas[c].record = fragment)
  /\ Cardinality(Members(ens)) = E
  /\ clients' = [clients EXCEPT ![c] = [client EXCEPT !.stage = "CHANGING", !.wanted = ens]]
  /\ cas' = [cas EXCEPT ![c] = [stage |-> stage, version |-> 0, record |-> fragment]]
  /\ UNCHANGED <<meta, fence, stored, claim, adds, acks>> /\ Quiet

TraceProposesEnd(c, last) ==                                                                     \* R1
  LET client == Current(c) IN
  /\ client.stage \in {"STEADY", "CHANGING", "CLOSING"}
  /\ last = client.lac
  /\ clients' = [clients EXCEPT ![c] = [client EXCEPT !.stage = "CLOSING"]]
  /\ cas' = [cas EXCEPT ![c] = [NoCas EXCEPT !.stage = "sent"]]
  /\ UNCHANGED <<meta, fence, stored, claim, adds, acks>> /\ Quiet

\* The metastore applied a change of the writer: only to an open record (C4).
WriterWrote(c, state, fragments, last) ==
  /\ meta.state = "OPEN" /\ meta.term = clients[c].term
  /\ \/ /\ state = "OPEN"
        /\ cas[c].stage \in {"sent", "written"} /\ clients[c].stage # "CLOSING"
        /\ meta' = [meta EXCEPT !.fragments = WithFragment(@, cas[c].record), !.version = @ + 1]
        /\ fragments = Shown(meta'.fragments)
     \/ /\ state = "CLOSED"
        /\ clients[c].stage = "CLOSING"
        /\ last = clients[c].lac
        /\ meta' = EndedAt(meta, last)
        /\ fragments = Shown(meta'.fragments)
     \* A change that was proposed before the writer began to close.
     \/ /\ state = "OPEN" /\ clients[c].stage = "CLOSING"
        /\ meta' = [meta EXCEPT !.fragments = WithFragment(@, Last(fragments)), !.version = @ + 1]
        /\ fragments = Shown(meta'.fragments)
  /\ cas' = [cas EXCEPT ![c].stage = "written"]
  /\ UNCHANGED <<clients, fence, stored, claim, adds, acks>> /\ Quiet

\* T2: a bounded ledger is claimed once, an unbounded one by each takeover, for a term of its own.
TraceClaims(r, fragments) ==
  /\ meta.state = "OPEN" \/ (Unbounded /\ meta.state = "IN_RECOVERY")
  /\ fragments = Shown(meta.fragments)
  /\ meta' = [meta EXCEPT !.state = "IN_RECOVERY", !.term = IF Unbounded THEN @ + 1 ELSE 2, !.version = @ + 1]
  /\ clients' = IF Unbounded
                THEN [clients EXCEPT ![r] = [Ended("NEW", NoEntry) EXCEPT !.term = meta'.term, !.frozen = Last(meta.fragments)]]
                ELSE clients
  /\ Unbounded => clients[r].stage = "NEW"
  /\ UNCHANGED <<cas, fence, stored, claim, adds, acks>> /\ Quiet

TraceBeginsToFence(r, fragment) ==                                                            \* R2: the record is claimed
  /\ clients[r].stage = "NEW"
  /\ IF Unbounded
     THEN clients[r].term > 1 /\ fragment = clients[r].frozen
     ELSE meta.state # "OPEN" /\ (meta.state = "IN_RECOVERY" => fragment = Last(meta.fragments))
  /\ clients' = [clients EXCEPT ![r] = [Ended("FENCING", NoEntry) EXCEPT
       !.term = IF Unbounded THEN clients[r].term ELSE 2, !.frozen = fragment, !.ens = fragment.ensemble]]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, adds, acks>> /\ Quiet

TraceHearsFence(r, i, confirmed) ==                                                           \* R2, R3, R11
  LET client == clients[r]
      proven == [id |-> confirmed, stamp |-> IF confirmed = NoEntry THEN 0 ELSE 1]
  IN
  \* A bookie may prove what an add said that is not durable there yet: that is true all the same.
  /\ client.stage = "FENCING" => /\ fence[client.frozen.ensemble[i]] >= client.term
                                 /\ confirmed <= Max(claim[client.frozen.ensemble[i]].id, ConfirmedThrough)
  /\ clients' = [clients EXCEPT ![r] = FenceHeard(client, i, proven)]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, adds, acks>> /\ Quiet

TraceHearsDenial(r, i, id, is_weak) ==                                                        \* R4: a read fences
  LET client == clients[r] IN
  /\ client.stage = "READING" /\ id = client.next
  /\ i \in WriteSet(id)
  /\ fence[client.frozen.ensemble[i]] >= client.term
  /\ clients' = [clients EXCEPT ![r].denied = IF is_weak THEN @ \ {i} ELSE @ \cup {i},
                                ![r].weak = IF is_weak THEN @ \cup {i} ELSE @ \ {i}]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, adds, acks>> /\ Quiet

TraceDoubts(r, i, id) ==      \* its last answer counts: it denies no more
  /\ clients' = [clients EXCEPT ![r].denied = @ \ {i}, ![r].weak = @ \ {i}]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, adds, acks>> /\ Quiet

TraceTakesBatch(r, i, ids, next) ==                                                           \* R4, R9
  LET client == clients[r]
      b == client.frozen.ensemble[i]
      found == {e \in stored[b] : e.id \in ids /\ e.stamp = client.frozen.term}
      taken == client.sent \cup found
  IN
  /\ client.stage = "READING"
  /\ client.next \in ids
  /\ IdsOf(found) = ids
  /\ fence[b] >= client.term
  /\ next > client.next
  /\ (client.next .. next - 1) \subseteq IdsOf(taken)
  /\ clients' = [clients EXCEPT ![r] = [client EXCEPT !.sent = taken, !.next = next, !.denied = {}, !.weak = {}]]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, adds, acks>> /\ Quiet

RecoverySends(r, b, i, ids, proof) ==                                                         \* R5, R6
  LET client == clients[r]
      sending == {e \in client.sent : e.id \in ids}
  IN
  /\ client.stage \in {"READING", "WRITING"}
  /\ client.ens[i] = b
  /\ IdsOf(sending) = ids
  /\ \A id \in ids : i \in WriteSet(id)
  /\ proof = client.start.id
  /\ adds' = adds \cup {[to |-> b, at |-> i, entry |-> e, from |-> r, term |-> client.term, proof |-> client.start] : e \in sending}
  /\ UNCHANGED <<meta, cas, clients, fence, stored, claim, acks>> /\ Quiet

TraceChangesPrivate(r, first, ens) ==                                                         \* R6
  LET client == clients[r]
      fragment == [first |-> first, ensemble |-> ens, term |-> client.frozen.term]
  IN
  /\ client.stage \in {"READING", "WRITING"}
  /\ Cardinality(Members(ens)) = E
  /\ first - 1 \in client.lac .. Written(r, client, client.lac)
  /\ clients' = [clients EXCEPT ![r] = [client EXCEPT !.ens = ens, !.lac = first - 1,
       !.private = IF client.private = <<>> THEN <<fragment>> ELSE WithFragment(@, fragment)]]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, adds, acks>> /\ Quiet

\* R4, R10: `excused` are members that recovery could not reach, gave up waiting for, or heard, but in doubt.
TraceFindsEnd(r, last, excused) ==
  LET client == clients[r]
      members == WriteSet(last + 1)
      unheard == members \ (client.denied \cup client.weak)
  IN
  /\ client.stage = "READING"
  /\ client.next = last + 1
  /\ \/ Cardinality(client.denied \cap members) >= Qw - Qa + 1 /\ unheard \subseteq excused
     \/ unheard = {} /\ Cardinality(client.weak) < Qa
  /\ clients' = [clients EXCEPT ![r].stage = "WRITING", ![r].end = last]
  /\ UNCHANGED <<meta, cas, fence, stored, claim, adds, acks>> /\ Quiet

RecoveryProposesEnd(r, last) ==                                                               \* R6
  /\ clients[r].stage = "WRITING"
  /\ clients[r].end = last
  /\ Written(r, clients[r], clients[r].lac) >= last
  /\ UNCHANGED <<meta, cas, clients, fence, stored, claim, adds, acks>> /\ Quiet

\* R6, T2: it closes the ledger, or opens it for its own term and goes on as the writer.
RecoveryWrote(r, state, fragments, last) ==
  LET client == clients[r]
      found == [meta EXCEPT !.fragments = WithFragments(@, client.private)]
      next == [first |-> client.end + 1, ensemble |-> client.ens, term |-> client.term]
  IN
  /\ meta.state = "IN_RECOVERY"
  /\ Unbounded => meta.term = client.term
  /\ client.stage = "WRITING"
  /\ client.frozen = Last(meta.fragments)
  /\ IF state = "CLOSED"
     THEN /\ client.end = last
          /\ meta' = EndedAt(found, last)
          /\ clients' = clients
     ELSE /\ Unbounded
          /\ meta' = [found EXCEPT !.state = "OPEN", !.fragments = WithFragment(@, next), !.version = @ + 1]
          /\ clients' = [clients EXCEPT ![r] = Writing("STEADY", client.term, 0, client.ens, client.end)]
  /\ fragments = Shown(meta'.fragments)
  /\ UNCHANGED <<cas, fence, stored, claim, adds, acks>> /\ Quiet

\* The record loses its first fragments, never the last one. Bookies keep what they have in these traces.
TraceTrims(fragments) ==
  LET kept == Len(fragments) IN
  /\ Unbounded /\ kept \in 1 .. Len(meta.fragments) - trimmed - 1
  /\ trimmed' = Len(meta.fragments) - kept
  /\ fragments = SubSeq(meta.fragments, trimmed' + 1, Len(meta.fragments))
  /\ UNCHANGED vars

BookieStored(b, c, i, ids) ==                                                                 \* T1, R3, B1
  LET taken == {m \in adds : m.to = b /\ m.from = c /\ m.at = i /\ m.entry.id \in ids}
      term == clients[c].term
      numbers == {claim[b]} \cup {[id |-> m.entry.lac, stamp |-> m.entry.lac_stamp] : m \in taken} \cup {m.proof : m \in taken}
  IN
  /\ {m.entry.id : m \in taken} = ids
  /\ term >= fence[b]
  /\ fence' = Raised(b, term)
  /\ stored' = [stored EXCEPT ![b] = @ \cup {m.entry : m \in taken}]
  /\ acks' = acks \cup {<<c, b, i, id>> : id \in ids}
  /\ claim' = [claim EXCEPT ![b] = CHOOSE n \in numbers : \A other \in numbers : n.id >= other.id]
  /\ UNCHANGED <<meta, cas, clients, adds>> /\ Quiet

\* The term is somebody's: no bookie is fenced for a term that nobody claimed.
BookieFenced(b, term) ==
  /\ term <= meta.term
  /\ fence' = Raised(b, term)
  /\ UNCHANGED <<meta, cas, clients, stored, claim, adds, acks>> /\ Quiet

BookieDenied(b, term, id, stamp) ==                                                           \* R4, O10
  /\ ~\E e \in stored[b] : e.id = id /\ e.stamp = stamp
  /\ BookieFenced(b, term)

\* A process that was killed begins again with what its disk has: all that it ever acknowledged (B1), its fence (R3), and maybe
\* some of what was sent to it and not yet acknowledged.
BookieRestarted(b, term, held) ==
  LET sent == {m.entry : m \in {n \in adds : n.to = b /\ n.term <= term}} IN
  /\ fence[b] <= term /\ term <= meta.term
  /\ {<<e.id, e.stamp>> : e \in stored[b]} \subseteq held
  /\ held \subseteq {<<e.id, e.stamp>> : e \in stored[b] \cup sent}
  /\ fence' = [fence EXCEPT ![b] = term]
  /\ stored' = [stored EXCEPT ![b] = @ \cup {e \in sent : <<e.id, e.stamp>> \in held}]
  /\ UNCHANGED <<meta, cas, clients, claim, adds, acks>> /\ Quiet

BookiePublished(b, term, confirmed) ==                                                        \* W5, R11
  /\ term >= fence[b]
  /\ confirmed <= ConfirmedThrough
  /\ fence' = Raised(b, term)
  /\ claim' = [claim EXCEPT ![b] = Later(@, [id |-> confirmed, stamp |-> term])]
  /\ UNCHANGED <<meta, cas, clients, stored, adds, acks>> /\ Quiet

\* R7, D3: what a writer confirmed, or what lies before the last fragment.
ReaderRead(last) ==
  /\ last <= (IF meta.state = "CLOSED" THEN meta.last ELSE Max(ConfirmedThrough, Last(meta.fragments).first - 1))
  /\ UNCHANGED <<meta, cas, clients, fence, stored, claim, adds, acks>> /\ Quiet

Writes(c) == clients[c].stage \in {"STEADY", "CHANGING", "CLOSING"}

Step ==
  LET e == Event IN
  CASE e[1] = "send" /\ Writes(e[2]) -> WriterSends(e[2], e[3], e[4], Named(e[5]), e[6])
    [] e[1] = "send" /\ ~Writes(e[2]) -> RecoverySends(e[2], e[3], e[4], Named(e[5]), e[6])
    [] e[1] = "confirmed" -> TraceConfirms(e[2], e[3])
    [] e[1] = "proposes ensemble" -> TraceProposesEnsemble(e[2], e[3], Ens(e[4]))
    [] e[1] = "proposes end" /\ Writes(e[2]) -> TraceProposesEnd(e[2], e[3])
    [] e[1] = "proposes end" /\ ~Writes(e[2]) -> RecoveryProposesEnd(e[2], e[3])
    [] e[1] = "finds end" -> TraceFindsEnd(e[2], e[3], Named(e[4]))
    [] e[1] = "wrote" /\ Writes(e[2]) -> WriterWrote(e[2], e[3], Frags(e[4]), e[5])
    [] e[1] = "wrote" /\ ~Writes(e[2]) /\ e[3] = "IN_RECOVERY" -> TraceClaims(e[2], Frags(e[4]))
    [] e[1] = "wrote" /\ ~Writes(e[2]) /\ e[3] # "IN_RECOVERY" -> RecoveryWrote(e[2], e[3], Frags(e[4]), e[5])
    [] e[1] = "trimmed" -> TraceTrims(Frags(e[2]))
    [] e[1] = "fences" -> TraceBeginsToFence(e[2], Frag(e[3]))
    [] e[1] = "heard fence" -> TraceHearsFence(e[2], e[3], e[4])
    [] e[1] = "heard denial" -> TraceHearsDenial(e[2], e[3], e[4], e[5])
    [] e[1] = "heard doubt" -> TraceDoubts(e[2], e[3], e[4])
    [] e[1] = "takes batch" -> TraceTakesBatch(e[2], e[3], Named(e[4]), e[5])
    [] e[1] = "changes private" -> TraceChangesPrivate(e[2], e[3], Ens(e[4]))
    [] e[1] = "stored" -> BookieStored(e[2], e[3], e[4], Named(e[5]))
    [] e[1] = "fenced" -> BookieFenced(e[2], e[3])
    [] e[1] = "denied" -> BookieDenied(e[2], e[3], e[4], e[5])
    [] e[1] = "restarted" -> BookieRestarted(e[2], e[3], Named(e[4]))
    [] e[1] = "published" -> BookiePublished(e[2], e[3], e[4])
    [] e[1] = "read" -> ReaderRead(e[2])

\* What must hold after each step; a lost copy is no step of these traces.
Sound ==
  /\ NothingConfirmedIsCutOff /\ ConfirmedIsReadable /\ ClosedIsAtAckQuorum /\ FragmentsAreValid /\ OnePayload

Goes == Step /\ Sound'

TraceNext ==
  /\ ~stuck
  /\ at <= Len(Events)
  /\ trace' = trace
  /\ \/ Goes /\ at' = at + 1 /\ stuck' = FALSE
     \/ ~ENABLED Goes /\ stuck' = TRUE /\ at' = at /\ UNCHANGED <<vars, trimmed>>
        /\ PrintT(<<"rejected", trace, at, Event[1]>>)

TraceSpec == TraceInit /\ [][TraceNext]_tvars
===============================================================================
