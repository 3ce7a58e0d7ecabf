package main

import (
	"regexp"
	"strings"
)

// A command is a command of a shell script: its words without preceding
// assignments.
type command struct {
	line  int // in the script, from 0
	words []string
}

var assignment = regexp.MustCompile(`^[A-Za-z_]\w*=`)

// commands splits a script into simple commands. It is used to check commands that
// are not run, so it need not support loops and expansions.
func commands(script string) (list []command) {
	var words []string
	var word strings.Builder
	started := false
	line, from := 0, 0
	endWord := func() {
		if started {
			if len(words) > 0 || !assignment.MatchString(word.String()) {
				words = append(words, word.String())
			}
		}
		word.Reset()
		started = false
	}
	endCommand := func() {
		endWord()
		if len(words) > 0 {
			list = append(list, command{from, words})
		}
		words = nil
	}
	var quote byte
	for i := 0; i < len(script); i++ {
		c := script[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && quote != '\'' && i+1 < len(script):
			i++
			if script[i] == '\n' {
				line++
			} else {
				word.WriteByte(script[i])
				started = true
			}
			continue
		case quote != 0:
			word.WriteByte(c)
		case c == '\'' || c == '"':
			quote, started = c, true
		case c == '#' && !started:
			for i+1 < len(script) && script[i+1] != '\n' {
				i++
			}
		case c == '\n':
			endCommand()
			from = line + 1
		case c == ';' || c == '&' || c == '|':
			endCommand()
		case c == ' ' || c == '\t':
			endWord()
		default:
			word.WriteByte(c)
			started = true
		}
		if c == '\n' {
			line++
		}
	}
	endCommand()
	return list
}
