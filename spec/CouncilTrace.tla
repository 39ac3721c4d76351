----------------------------- MODULE CouncilTrace -----------------------------
(* Accepts what the members of a metastore did: each trace is what all members of one cluster did, in the order in which the others
could see it, as `tests/spec/council_traces.py` writes it down. Every event must be a step that `Council` allows, and lead to the
term, log and commit that the member really has; after each step the invariants hold.

What a follower does counts when it is durable, and what a leader sends counts at once, as in `Council`.

Differences to `Council`, all of them because the code does several steps at once, or more of them:
- a message has any number of entries, and a copy of the state stands for all entries up to its end (Q12);
- a vote answers a request that may be of an earlier candidacy: `stood` has the requests;
- a member hears of a term in any message, and a leader steps down by itself (Q17);
- a write may lack the last entries, and a member that restarts knows less to be committed than before;
- a newcomer may lack of what is committed as much as one message has (Q9).

A name whose disk was lost is not heard of again (Q11): it has no event for that. `Traces` is in the module TraceData, which is made
for each run. An event that no step allows prints the trace and the place. *)
EXTENDS Council, TraceData

VARIABLES trace, at, stuck, stood

tvars == <<vars, trace, at, stuck, stood>>
Events == Traces[trace].events
Event == Events[at]
Named(given) == {given[k] : k \in 1 .. Len(given)}
Groups(given) == [k \in 1 .. Len(given) |-> Named(given[k])]

\* A member of a cluster that has begun: its first entry is committed (Q16).
Begun(term) == [New EXCEPT !.term = term, !.log = <<Entry(1, <<>>)>>, !.commit = 1, !.disk = [term |-> term, vote |-> {}, last |-> 1]]

TraceInit ==
  /\ trace \in 1 .. Len(Traces)
  /\ at = 1
  /\ stuck = FALSE
  /\ stood = {}
  /\ members = [n \in Names |-> IF n \in Traces[trace].begun THEN Begun(Traces[trace].term) ELSE New]
  /\ past = {}
  /\ decided = {[index |-> 1, entry |-> Entry(1, <<>>), term |-> 1]}
  /\ elected = {}
  /\ counts = [stands |-> 0, commands |-> 0, losses |-> 0]

Same == UNCHANGED stood

TraceStands(n, term) ==                                                                          \* Q1, Q9
  /\ Stands(n, term)
  /\ stood' = stood \cup {<<n, term, LastTerm(members[n].log), Len(members[n].log)>>}

TraceVotes(n, candidate, term, last_term, last) ==                                               \* Q1, Q3
  LET seen == IF term > members[n].term THEN Sees(members[n], term) ELSE members[n]
      voted == [members EXCEPT ![n] = Synced([seen EXCEPT !.vote = {candidate}])]
      counts_it == members[candidate].role = "CANDIDATE" /\ members[candidate].term = term
      now == IF counts_it THEN [voted EXCEPT ![candidate].votes = @ \cup {n}] ELSE voted
      own == members[n].log
  IN
  /\ <<candidate, term, last_term, last>> \in stood
  /\ term >= members[n].term
  /\ seen.vote \subseteq {candidate}
  /\ ~(last_term < LastTerm(own) \/ (last_term = LastTerm(own) /\ last < Len(own)))
  /\ members' = now /\ past' = PastWith(now, n)
  /\ UNCHANGED <<decided, elected, counts>> /\ Same

\* Of any term: who refuses may say one that is not on its own disk yet.
TraceSees(n, term) ==
  /\ term > members[n].term
  /\ Become(n, Synced(Sees(members[n], term)))
  /\ UNCHANGED <<decided, elected, counts>> /\ Same

TraceStepsDown(n) ==                                                                             \* Q17
  /\ Become(n, Follows(members[n]))
  /\ UNCHANGED <<decided, elected, counts>> /\ Same

TraceAppends(n, groups) ==                                                                       \* Q6, Q8, Q9
  LET member == members[n]
      now == GroupsOf(member.log)
  IN
  /\ CASE groups = <<>> -> TRUE
       [] Len(groups) = 1 -> Len(now) = 2 /\ groups[1] = now[2] /\ MembersIndex(member.log) <= member.commit
       [] Len(groups) = 2 ->
            /\ Len(now) = 1 /\ groups[1] = now[1] /\ groups[2] # now[1]
            /\ MembersIndex(member.log) <= member.commit
            /\ LastTerm(Prefix(member.log, member.commit)) = member.term
            /\ \A m \in groups[2] \ (now[1] \cup {n}) :
                 member.matched[m] >= Max(1, member.commit - Traces[trace].together + 1)
  /\ LeaderAppends(n, groups)
  /\ UNCHANGED <<decided, elected, counts>> /\ Same

\* An acknowledgement counts for the leader that is still the one of that term (Q7).
Acknowledged(now, n, leader, term, index) ==
  IF now[leader].role = "LEADER" /\ now[leader].term = term
  THEN [now EXCEPT ![leader].matched[n] = Max(@, index)] ELSE now

\* Learners get what is committed; members what comes behind it, too, also after an entry that lets them go (Q9).
MayGet(n, source, last) ==
  \/ last <= source.commit
  \/ \E k \in last .. Len(source.log) : n \in InGroups(GroupsOf(Prefix(source.log, k)))

TraceFollows(n, leader, term, previous, count, commit, last, known) ==                           \* Q2, Q4, Q5, Q7
  \E source \in {each \in Sources : each.by = leader /\ each.term = term} :
    LET member == Follows(members[n])
        log == member.log
        compared == previous + count
        differs == {j \in previous + 1 .. compared : j > Len(log) \/ TermAt(log, j) # TermAt(source.log, j)}
        first == CHOOSE j \in differs : \A k \in differs : j <= k
        whole == IF differs = {} THEN log ELSE Prefix(log, first - 1) \o SubSeq(source.log, first, compared)
        changed == [member EXCEPT !.log = whole, !.commit = Max(@, Min(commit, compared))]
        now == Acknowledged([members EXCEPT ![n] = Synced(changed)], n, leader, term, compared)
    IN
    /\ member.term = term
    /\ compared <= Len(source.log) /\ commit <= source.commit
    /\ previous <= Len(log) /\ TermAt(log, previous) = TermAt(source.log, previous)
    /\ IF differs = {} THEN TRUE ELSE MayGet(n, source, compared)
    /\ Len(whole) = last /\ changed.commit = known
    /\ members' = now /\ past' = PastWith(now, n)
    /\ decided' = Deciding(whole, member.commit + 1, changed.commit, term)
    /\ UNCHANGED <<elected, counts>> /\ Same

\* A copy goes forward only, and keeps what continues it (Q12).
TraceTakesCopy(n, leader, term, index, last) ==
  \E source \in {each \in Sources : each.by = leader /\ each.term = term} :
    LET member == Follows(members[n])
        continues == index <= Len(member.log) /\ TermAt(member.log, index) = TermAt(source.log, index)
        changed == IF index <= member.commit THEN member
                   ELSE [member EXCEPT !.log = IF continues THEN @ ELSE Prefix(source.log, index), !.commit = index]
        now == Acknowledged([members EXCEPT ![n] = Synced(changed)], n, leader, term, index)
    IN
    /\ member.term = term
    /\ index <= source.commit
    /\ Len(changed.log) = last
    /\ members' = now /\ past' = PastWith(now, n)
    /\ UNCHANGED <<decided, elected, counts>> /\ Same

\* A leader's write, or the last one of a leader that leads no more.
TraceWrote(n, last) ==
  /\ last <= Len(members[n].log)
  /\ Become(n, [members[n] EXCEPT !.disk = [term |-> members[n].term, vote |-> members[n].vote, last |-> last]])
  /\ UNCHANGED <<decided, elected, counts>> /\ Same

TraceRestarts(n, term, last, commit) ==                                                          \* Q1, Q2
  LET member == [Restarted(members[n], members[n].disk.last) EXCEPT !.commit = commit] IN
  /\ member.term = term /\ Len(member.log) = last
  /\ commit <= members[n].commit
  /\ Become(n, member)
  /\ UNCHANGED <<decided, elected, counts>> /\ Same

Step ==
  LET e == Event IN
  CASE e[1] = "stands" -> TraceStands(e[2], e[3])
    [] e[1] = "votes" -> TraceVotes(e[2], e[3], e[4], e[5], e[6])
    [] e[1] = "sees" -> TraceSees(e[2], e[3])
    [] e[1] = "steps down" -> TraceStepsDown(e[2])
    [] e[1] = "leads" -> Leads(e[2]) /\ Same
    [] e[1] = "appends" -> TraceAppends(e[2], Groups(e[3]))
    [] e[1] = "commits" -> LeaderCommits(e[2], e[3]) /\ Same
    [] e[1] = "follows" -> TraceFollows(e[2], e[3], e[4], e[5], e[6], e[7], e[8], e[9])
    [] e[1] = "takes copy" -> TraceTakesCopy(e[2], e[3], e[4], e[5], e[6])
    [] e[1] = "wrote" -> TraceWrote(e[2], e[3])
    [] e[1] = "restarts" -> TraceRestarts(e[2], e[3], e[4], e[5])

\* Logs that have an entry of the same index and term are the same up to there.
LogsAgree(one, other) ==
  LET same == {k \in 1 .. Min(Len(one), Len(other)) : one[k].term = other[k].term} IN
  IF same = {} THEN TRUE ELSE LET last == CHOOSE k \in same : \A j \in same : j <= k IN Prefix(one, last) = Prefix(other, last)

\* What must hold of the member that took the step: nothing else has changed but what is decided.
Sound ==
  LET n == Event[2]
      log == members'[n].log
  IN
  /\ \A one \in decided' \ decided : \A other \in decided' : one.index = other.index => one.entry = other.entry
  /\ \A one \in elected' \ elected : \A other \in elected' : one[1] = other[1] => one = other
  /\ members'[n].role = "LEADER" /\ members[n].role # "LEADER" =>
       \A each \in decided : each.term < members'[n].term => Len(log) >= each.index /\ log[each.index] = each.entry
  /\ members'[n].commit <= Len(log)
  /\ \A k \in members[n].commit + 1 .. members'[n].commit : \E each \in decided' : each.index = k /\ each.entry = log[k]
  /\ log # members[n].log => \A other \in Names : LogsAgree(log, members'[other].log)

Goes == Step /\ (Sound = TRUE)

TraceNext ==
  /\ ~stuck
  /\ at <= Len(Events)
  /\ trace' = trace
  /\ \/ Goes /\ at' = at + 1 /\ stuck' = FALSE
     \/ ~ENABLED Goes /\ stuck' = TRUE /\ at' = at /\ UNCHANGED <<vars, stood>>
        /\ PrintT(<<"rejected", trace, at, Event[1]>>)

TraceSpec == TraceInit /\ [][TraceNext]_tvars
===============================================================================
