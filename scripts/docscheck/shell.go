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

var (
	// a line that goes on, a comment, a word, the end of a command
	pieces     = regexp.MustCompile(`(?s)\\\n|#[^\n]*|(?:\\.|'[^']*'?|"(?:\\.|[^"\\])*"?|[^\s;&|\\'"])+|[\n;&|]`)
	assignment = regexp.MustCompile(`^[A-Za-z_]\w*=`)
	quoted     = regexp.MustCompile(`(?s)\\.|'[^']*'?|"(?:\\.|[^"\\])*"?`)
	escaped    = regexp.MustCompile(`(?s)\\(?:\n|(.))`)
)

// commands splits a script into simple commands. It is used to check commands that
// are not run, so it need not support loops and expansions.
func commands(script string) (list []command) {
	var next command
	line := 0
	for _, word := range append(pieces.FindAllString(script, -1), "\n") {
		line += strings.Count(word, "\n")
		switch {
		case strings.ContainsAny(word[:1], "\n;&|"):
			if len(next.words) > 0 {
				list = append(list, next)
			}
			if next.words = nil; word == "\n" {
				next.line = line
			}
		case word != "\\\n" && word[0] != '#' && (len(next.words) > 0 || !assignment.MatchString(word)):
			next.words = append(next.words, quoted.ReplaceAllStringFunc(word, unquote))
		}
	}
	return list
}

// unquote returns the text of a part of a word that is quoted.
func unquote(part string) string {
	if part[0] == '\'' {
		return strings.Trim(part, "'")
	}
	return escaped.ReplaceAllString(strings.TrimSuffix(strings.TrimPrefix(part, `"`), `"`), "$1")
}
