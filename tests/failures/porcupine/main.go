// Reads a history of a metastore, one call a line in JSON, and prints what Porcupine says of it: ok, violation or no verdict.
//
// The state is that of all keys below one prefix. A write whose answer was lost has a version that nobody has seen yet: -1. It may
// have happened at any time after its beginning, or never: then it comes last, where its effect is seen by nobody.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"path"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

const keysMax = 8
const unseen = -1

type call struct {
	What     string
	Key      string
	Value    string
	Expected int64 // 0: any
	Begun    int64
	Ended    int64
	Answer   string // done, exists, missing, conflict, unknown
	Version  int64
	Words    []string
	place    int
}

type register struct {
	isThere bool
	value   string
	version int64
}

type state struct {
	registers [keysMax]register
}

type judge struct {
	places map[string]int
}

func (j judge) step(before, _, output any) (bool, any) {
	now, said := before.(state), output.(*call)
	if said.What == "children" {
		return j.isListed(now, said.Words), now
	}
	found := &now.registers[said.place]
	switch {
	case said.Answer == "exists":
		return said.What == "create" && found.isThere, now
	case said.Answer == "missing":
		return said.What != "create" && !found.isThere, now
	case said.Answer == "conflict":
		return found.isThere && said.Expected != 0 && found.version != said.Expected, now
	}
	isPossible := found.isThere
	switch said.What {
	case "create":
		isPossible = !found.isThere
	case "get":
		isPossible = isPossible && found.value == said.Value && (found.version == unseen || found.version == said.Version)
	default:
		isPossible = isPossible && (said.Expected == 0 || found.version == unseen || found.version == said.Expected)
	}
	if !isPossible {
		return said.Answer == "unknown", now // it was refused, and nobody was told
	}
	if said.What == "delete" {
		*found = register{}
	} else {
		*found = register{true, said.Value, said.Version}
	}
	return true, now
}

func (j judge) isListed(now state, words []string) bool {
	count := 0
	for _, found := range now.registers {
		if found.isThere {
			count++
		}
	}
	for _, word := range words {
		place, isKnown := j.places[word]
		if !isKnown || !now.registers[place].isThere {
			return false
		}
	}
	return count == len(words)
}

func (j judge) operations(source io.Reader) []porcupine.Operation {
	var found []porcupine.Operation
	for lines := json.NewDecoder(source); ; {
		said := &call{}
		if err := lines.Decode(said); err == io.EOF {
			return found
		} else if err != nil {
			log.Fatal(err)
		}
		word := path.Base(said.Key)
		if _, isKnown := j.places[word]; !isKnown && said.What != "children" {
			j.places[word] = len(j.places)
		}
		said.place = j.places[word]
		ended := said.Ended
		if said.Answer == "unknown" {
			ended, said.Version = math.MaxInt64, unseen
		}
		found = append(found, porcupine.Operation{Input: said, Call: said.Begun, Output: said, Return: ended})
	}
}

func main() {
	timeoutS, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	j := judge{places: map[string]int{}}
	operations := j.operations(os.Stdin)
	if len(j.places) > keysMax {
		log.Fatalf("%d keys: more than %d", len(j.places), keysMax)
	}
	model := porcupine.Model{Init: func() any { return state{} }, Step: j.step}
	result := porcupine.CheckOperationsTimeout(model, operations, time.Duration(timeoutS)*time.Second)
	fmt.Println(map[porcupine.CheckResult]string{
		porcupine.Ok: "ok", porcupine.Illegal: "violation", porcupine.Unknown: "no verdict"}[result])
}
