------------------------------- MODULE Council -------------------------------
(* The members of a metastore, as `replog.protocol.consensus` builds them: elections, the log, commits, and changes of members.

Rules are cited by the numbers of docs/reference/protocol-rules.md (Q1 to Q9, Q11). A member that takes no further step has crashed
for good. Any other crash forgets what was not on the disk.

The network loses, delays, doubles and reorders. A leader's log only grows while it leads, so all messages that it ever sent are
parts of that log: they are read from the leader, or from `past` once it leads no more. Votes and acknowledgements count when
they are given; the step that needs them may come at any later time. A follower's write and what it says are one step: if it
crashes in between, nobody heard of it, as if the step had not been. A leader sends before it writes (Q2).

Left out: pre-votes and time (Q17), reads (Q10), copies and dropped entries (Q12), commands and outcomes (Q13, Q14), founding (Q16).

`Removed` names rules that are left out, to see that something breaks without them. *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Names,        \* all that ever exist
  First,        \* the members at the beginning; the others are new directories
  Targets,      \* groups that a change may lead to
  Alike,        \* names that are interchangeable
  TermsMax, LogMax,
  StandsMax,    \* how often a member stands for election; 0: as often as there are terms for
  CommandsMax,  \* entries beside those of elections and changes
  LossesMax,    \* disks that lose something
  Removed

VARIABLES
  members,   \* by name: its machine, and what of it is on its disk
  past,      \* leaders that lead no more: their messages may still arrive
  decided,   \* entries that were ever committed, and in which term
  elected,   \* who was ever elected, and in which term
  counts     \* how many candidacies, commands and losses there were

vars == <<members, past, decided, elected, counts>>

Holds(rule) == rule \notin Removed
Min(a, b) == IF a <= b THEN a ELSE b
Max(a, b) == IF a >= b THEN a ELSE b
Prefix(log, last) == SubSeq(log, 1, Min(last, Len(log)))
TermAt(log, index) == IF index = 0 THEN 0 ELSE log[index].term
LastTerm(log) == TermAt(log, Len(log))

\* An entry: `groups` is <<old, new>> in a CHANGE, <<new>> in a SETTLE, and <<>> in all others.
Entry(term, groups) == [term |-> term, groups |-> groups]
AboutMembers(log) == {k \in 1 .. Len(log) : log[k].groups # <<>>}
MembersIndex(log) == IF AboutMembers(log) = {} THEN 0 ELSE CHOOSE k \in AboutMembers(log) : \A j \in AboutMembers(log) : j <= k
GroupsOf(log) == IF AboutMembers(log) = {} THEN <<First>> ELSE log[MembersIndex(log)].groups                       \* Q8
InGroups(groups) == UNION {groups[k] : k \in 1 .. Len(groups)}

IsMajority(group, names) ==
  LET agree == Cardinality(group \cap names) IN
  IF Holds("Q8 majority") THEN 2 * agree > Cardinality(group) ELSE agree >= Max(1, Cardinality(group) \div 2)
Agree(groups, names) ==
  \A k \in 1 .. Len(groups) : (k = 1 \/ Holds("Q8 both")) => IsMajority(groups[k], names)

\* Which groups a member goes by: committed or not.
Counted(member) == GroupsOf(IF Holds("Q8 log") THEN member.log ELSE Prefix(member.log, member.commit))

Nobody == [n \in Names |-> 0]
New == [term |-> 0, vote |-> {}, role |-> "FOLLOWER", log |-> <<>>, commit |-> 0, votes |-> {}, matched |-> Nobody,
        disk |-> [term |-> 0, vote |-> {}, last |-> 0], gone |-> FALSE]

Init ==
  /\ members = [n \in Names |-> New]
  /\ past = {}
  /\ decided = {}
  /\ elected = {}
  /\ counts = [stands |-> 0, commands |-> 0, losses |-> 0]

-----------------------------------------------------------------------------
\* What all steps have in common

\* All that changed is on the disk.
Synced(member) == [member EXCEPT !.disk = [term |-> member.term, vote |-> member.vote, last |-> Len(member.log)]]
\* Acknowledgements of another term are ignored (Q7).
Follows(member) ==
  [member EXCEPT !.role = "FOLLOWER", !.votes = {}, !.matched = IF Holds("Q7 term") THEN Nobody ELSE @]
Sees(member, term) == [Follows(member) EXCEPT !.term = term, !.vote = IF term > member.term THEN {} ELSE @]

Source(n) == [by |-> n, term |-> members[n].term, log |-> members[n].log, commit |-> members[n].commit]
\* What a leader has sent may still arrive when it leads no more, unless all are beyond its term.
PastWith(now, n) ==
  LET all == IF members[n].role = "LEADER" /\ now[n].role # "LEADER" THEN past \cup {Source(n)} ELSE past
  IN {each \in all : \E other \in Names \ {each.by} : ~now[other].gone /\ now[other].term <= each.term}
Become(n, member) == LET now == [members EXCEPT ![n] = member] IN members' = now /\ past' = PastWith(now, n)

Deciding(log, first, last, term) ==
  decided \cup {[index |-> k, entry |-> log[k], term |-> term] :
                k \in {j \in first .. Min(last, Len(log)) : \A each \in decided : each.index # j \/ each.entry # log[j]}}

-----------------------------------------------------------------------------
\* Elections

\* A member; or one that an entry lets go which it does not know to be committed (Q9).
MayLead(n) ==
  LET member == members[n]
      index == MembersIndex(member.log)
  IN
  \/ n \in InGroups(Counted(member))
  \/ Holds("Q9 let go") /\ index > member.commit /\ n \in InGroups(GroupsOf(Prefix(member.log, index - 1)))

\* It may have heard of any term before.
Stands(n, term) ==
  LET member == [Sees(members[n], term) EXCEPT !.role = "CANDIDATE", !.vote = {n}, !.votes = {n}] IN
  /\ term > members[n].term
  /\ MayLead(n)
  /\ StandsMax = 0 \/ counts.stands < StandsMax
  /\ Become(n, IF Holds("Q1 durable") THEN Synced(member) ELSE member)
  /\ counts' = [counts EXCEPT !.stands = IF StandsMax = 0 THEN 0 ELSE @ + 1]
  /\ UNCHANGED <<decided, elected>>

IsOlder(log, than) ==                                                                                            \* Q3
  IF ~Holds("Q3 log") THEN FALSE
  ELSE IF ~Holds("Q3 term") THEN Len(log) < Len(than)
  ELSE LastTerm(log) < LastTerm(than) \/ (LastTerm(log) = LastTerm(than) /\ Len(log) < Len(than))

Votes(n, candidate) ==
  LET term == members[candidate].term
      seen == IF term > members[n].term THEN Sees(members[n], term) ELSE members[n]
      member == [seen EXCEPT !.vote = {candidate}]
      now == [members EXCEPT ![n] = IF Holds("Q1 durable") THEN Synced(member) ELSE member, ![candidate].votes = @ \cup {n}]
  IN
  /\ term >= members[n].term
  /\ seen.vote \subseteq {candidate} \/ ~Holds("Q1 once")                                                        \* Q1
  /\ ~IsOlder(members[candidate].log, members[n].log)
  /\ members' = now /\ past' = PastWith(now, n)
  /\ UNCHANGED <<decided, elected, counts>>

\* Its first act is an empty entry (Q6).
Leads(n) ==
  LET member == members[n] IN
  /\ member.role = "CANDIDATE"
  /\ Agree(Counted(member), member.votes)
  /\ Become(n, [member EXCEPT !.role = "LEADER", !.votes = {},
                              !.log = IF Len(@) < LogMax THEN Append(@, Entry(member.term, <<>>)) ELSE @])
  /\ elected' = elected \cup {<<member.term, n>>}
  /\ UNCHANGED <<decided, counts>>

-----------------------------------------------------------------------------
\* The log

LeaderAppends(n, groups) ==
  /\ members[n].role = "LEADER"
  /\ Len(members[n].log) < LogMax
  /\ Become(n, [members[n] EXCEPT !.log = Append(@, Entry(members[n].term, groups))])

Commands(n) ==
  /\ counts.commands < CommandsMax
  /\ LeaderAppends(n, <<>>)
  /\ counts' = [counts EXCEPT !.commands = @ + 1]
  /\ UNCHANGED <<decided, elected>>

LeaderWrites(n) ==
  /\ members[n].role = "LEADER"
  /\ Become(n, Synced(members[n]))
  /\ UNCHANGED <<decided, elected, counts>>

\* A message of any leader, present or past: `count` entries behind `previous`, and how far it has committed, or less.
AppendArrives(n, source, previous, count, commit) ==
  LET member == Sees(members[n], source.term)
      log == member.log
      compared == previous + count
      matches == \/ previous = 0
                 \/ previous <= Len(log) /\ (TermAt(log, previous) = TermAt(source.log, previous) \/ ~Holds("Q4 compare"))  \* Q4
      is_new == count = 1 /\ (compared > Len(log) \/ TermAt(log, compared) # TermAt(source.log, compared))
      whole == IF is_new THEN Append(Prefix(log, previous), source.log[compared])
               ELSE IF Holds("Q5") THEN log ELSE Prefix(log, compared)                                           \* Q5
      known == Max(member.commit, Min(commit, IF Holds("Q7 compared") THEN compared ELSE Len(whole)))            \* Q7
      changed == [member EXCEPT !.log = whole, !.commit = known]
      told == IF Holds("Q2 answer") THEN Synced(changed)                                                         \* Q2
              ELSE [changed EXCEPT !.disk.last = Min(@, IF is_new THEN previous ELSE Len(whole))]
      refused == Synced(member)
      \* What it acknowledges is how far this message was compared (Q4).
      acknowledged == IF Holds("Q4 acknowledge") THEN compared ELSE Len(whole)
      heard == [members EXCEPT ![n] = IF matches THEN told ELSE refused]
      counts_it == matches /\ members[source.by].role = "LEADER" /\ members[source.by].term = source.term
      now == IF counts_it \/ (matches /\ ~Holds("Q7 term") /\ ~members[source.by].gone)
             THEN [heard EXCEPT ![source.by].matched[n] = Max(@, acknowledged)] ELSE heard
  IN
  /\ n \in InGroups(GroupsOf(source.log)) \/ compared <= source.commit                                           \* Q9
  /\ now # members \/ (matches /\ known > member.commit)
  /\ ~(members[n].role = "LEADER" /\ members[n].term = source.term)
  /\ members' = now /\ past' = PastWith(now, n)
  /\ decided' = IF matches THEN Deciding(whole, member.commit + 1, known, source.term) ELSE decided
  /\ UNCHANGED <<elected, counts>>

Sources == {Source(n) : n \in {m \in Names : members[m].role = "LEADER"}} \cup past

\* What is committed is counted in entries of its own term (Q6), on disks (Q2), its own among them.
LeaderCommits(n, index) ==
  LET member == members[n]
      have == {m \in Names \ {n} : member.matched[m] >= index}
              \cup (IF member.disk.last >= index \/ ~Holds("Q2 own") THEN {n} ELSE {})
  IN
  /\ member.role = "LEADER"
  /\ index > member.commit
  /\ member.log[index].term = member.term \/ ~Holds("Q6")
  /\ Agree(Counted(member), have)
  /\ Become(n, [member EXCEPT !.commit = index])
  /\ decided' = Deciding(member.log, member.commit + 1, index, member.term)
  /\ UNCHANGED <<elected, counts>>

-----------------------------------------------------------------------------
\* Changes of members

BeginsChange(n, group) ==
  LET member == members[n]
      groups == GroupsOf(member.log)
      old == groups[Len(groups)]
  IN
  /\ member.role = "LEADER"
  /\ group # old
  /\ LastTerm(Prefix(member.log, member.commit)) = member.term \/ ~Holds("Q9 own term")                          \* Q9
  /\ (Len(groups) = 1 /\ MembersIndex(member.log) <= member.commit) \/ ~Holds("Q9 one")
  /\ \A m \in group \ (InGroups(groups) \cup {n}) : member.matched[m] >= member.commit \/ ~Holds("Q9 newcomer")
  /\ LeaderAppends(n, IF Holds("Q8 joint") THEN <<old, group>> ELSE <<group>>)
  /\ UNCHANGED <<decided, elected, counts>>

Settles(n) ==
  LET member == members[n]
      groups == GroupsOf(member.log)
  IN
  /\ Len(groups) = 2
  /\ MembersIndex(member.log) <= member.commit \/ ~Holds("Q9 settle")
  /\ LeaderAppends(n, <<groups[2]>>)
  /\ UNCHANGED <<decided, elected, counts>>

-----------------------------------------------------------------------------
\* Crashes and disks

Restarted(member, last) ==
  LET log == Prefix(member.log, last) IN
  [Follows(member) EXCEPT !.term = member.disk.term, !.vote = member.disk.vote, !.log = log, !.commit = Min(@, Len(log)),
                          !.disk.last = Len(log)]
\* What it knows to be committed is what it has applied on its disk: any part of it.
Crashes(n) ==
  \E known \in 0 .. members[n].commit :
  /\ Become(n, [Restarted(members[n], members[n].disk.last) EXCEPT !.commit = Min(@, known)])
  /\ UNCHANGED <<decided, elected, counts>>

\* Who lost something is a new member: the old name is never heard of again (Q11).
LosesAll(n) ==
  /\ counts.losses < LossesMax
  /\ Become(n, IF Holds("Q11 wiped") THEN [New EXCEPT !.gone = TRUE] ELSE New)
  /\ counts' = [counts EXCEPT !.losses = @ + 1]
  /\ UNCHANGED <<decided, elected>>

LosesEntries(n) ==
  /\ counts.losses < LossesMax
  /\ members[n].disk.last > 0
  /\ Become(n, IF Holds("Q11 shortened") THEN [New EXCEPT !.gone = TRUE] ELSE Restarted(members[n], members[n].disk.last - 1))
  /\ counts' = [counts EXCEPT !.losses = @ + 1]
  /\ UNCHANGED <<decided, elected>>

-----------------------------------------------------------------------------
Next ==
  \E n \in {m \in Names : ~members[m].gone} :
    \/ \E term \in 1 .. TermsMax : Stands(n, term)
    \/ \E candidate \in {m \in Names : members[m].role = "CANDIDATE"} \ {n} : Votes(n, candidate)
    \/ Leads(n)
    \/ Commands(n)
    \/ LeaderWrites(n)
    \/ \E source \in {each \in Sources : each.by # n /\ each.term >= members[n].term} : \E previous \in 0 .. Len(source.log) : \E count \in 0 .. Min(1, Len(source.log) - previous) :
         \E commit \in {0, source.commit} : AppendArrives(n, source, previous, count, commit)
    \/ \E index \in 1 .. Len(members[n].log) : LeaderCommits(n, index)
    \/ \E group \in Targets : BeginsChange(n, group)
    \/ Settles(n)
    \/ (members[n] # Restarted(members[n], members[n].disk.last) \/ members[n].commit > 0) /\ Crashes(n)
    \/ LosesAll(n)
    \/ LosesEntries(n)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* What must hold

OneLeader == \A one, other \in elected : one[1] = other[1] => one = other

\* What was committed is never lost, and never another entry: state machines agree.
OneHistory == \A one, other \in decided : one.index = other.index => one.entry = other.entry

\* A leader has all that was committed before its term.
LeaderHasAll ==
  \A n \in {m \in Names : members[m].role = "LEADER"} : \A each \in decided :
    each.term < members[n].term =>
      Len(members[n].log) >= each.index /\ members[n].log[each.index] = each.entry

\* Each member has what it knows to be committed, and that was committed.
CommittedIsThere ==
  \A n \in Names :
    /\ members[n].commit <= Len(members[n].log)
    /\ \A k \in 1 .. Min(members[n].commit, Len(members[n].log)) :
         \E each \in decided : each.index = k /\ each.entry = members[n].log[k]

\* Logs that have an entry of the same index and term are the same up to there.
LogsMatch ==
  \A one, other \in Names : \A k \in 1 .. Min(Len(members[one].log), Len(members[other].log)) :
    members[one].log[k].term = members[other].log[k].term => Prefix(members[one].log, k) = Prefix(members[other].log, k)

\* If all that are left talk to each other, one of them can be elected.
SomebodyMayLead ==
  \E n \in {m \in Names : ~members[m].gone} :
    /\ MayLead(n)
    /\ Agree(Counted(members[n]), {m \in Names : ~members[m].gone /\ ~IsOlder(members[n].log, members[m].log)})

\* Goals: TLC finds a state in which such a formula is false.
NeverLeadsWithOldEntries ==
  ~(\E n \in Names : members[n].role = "LEADER" /\ members[n].commit > 1 /\ members[n].log[1].term < members[n].term)
NeverCommitsBeforeItsDisk == ~(\E n \in Names : members[n].role = "LEADER" /\ members[n].disk.last < members[n].commit)
NeverCutsALostLeader ==
  ~(\E lost \in past : \E each \in decided :
      /\ Len(lost.log) >= each.index /\ lost.log[each.index].term < each.entry.term
      /\ members[lost.by].commit >= each.index)
NeverLeadsTheNewGroup ==
  ~(\E n \in Names \ First :
      /\ members[n].role = "LEADER" /\ members[n].commit = Len(members[n].log)
      /\ GroupsOf(members[n].log) = <<{n}>>)

Symmetry == Permutations(Alike)
===============================================================================
