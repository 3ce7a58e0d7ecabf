package main

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
)

// A document contains the parts of a Markdown file to check.
type document struct {
	name    string
	blocks  []block
	spans   []span
	links   []link
	anchors map[string]bool // of its headings, as on GitHub
}

// A block is a code block, fenced or indented.
type block struct {
	line  int    // of its first line of code
	lang  string // the first word after the fence; "" for indented blocks
	text  string
	marks []string // docs-check comments before it, without that word
}

// A span is a code span in a line of text.
type span struct {
	line int
	text string
}

// A link is the target of a link, as written.
type link struct {
	line   int
	target string
}

var (
	fence    = regexp.MustCompile("^( *)(```+|~~~+) *([^`]*)$")
	heading  = regexp.MustCompile(`^ {0,3}#{1,6}\s+(.*?)(?:\s+#+)?\s*$`)
	listItem = regexp.MustCompile(`^ *(?:[-*+]|\d{1,9}[.)]) +`)
	comment  = regexp.MustCompile(`(?s)<!--.*?-->`)
	mark     = regexp.MustCompile(`(?s)^<!--\s*docs-check:\s*(.*?)\s*-->$`)
	ticks    = regexp.MustCompile("`+")
	inline   = regexp.MustCompile(`\]\(\s*<?([^\s()<>]+)>?(?:\s+"[^"]*")?\s*\)`)
	defined  = regexp.MustCompile(`(?m)^ {0,3}\[[^\]]+\]:\s+<?([^\s<>]+)>?`)
	html     = regexp.MustCompile(`\b(?:href|src)="([^"]+)"`)
)

// parse parses the parts of Markdown that are checked: fenced and indented code,
// lists, headings, comments, links and code spans.
func parse(name, text string) (*document, error) {
	d := &document{name: name, anchors: map[string]bool{}}
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	prose := make([]string, len(lines)) // the text without code blocks, line by line
	var marks []string
	marked := 0   // the line of the last mark
	indent := 0   // of the text of the list item that a line may belong to
	open := false // in a paragraph, which indented lines go on
	counts := map[string]int{}
	take := func(b block) {
		b.marks, marks = marks, nil
		d.blocks = append(d.blocks, b)
	}
	for i := 0; i < len(lines); i++ {
		line := strings.ReplaceAll(lines[i], "\t", "    ")
		if strings.TrimSpace(line) == "" {
			open = false
			continue
		}
		column := len(line) - len(strings.TrimLeft(line, " "))
		if m := fence.FindStringSubmatch(line); m != nil && column < indent+4 {
			start := i + 1
			for i++; i < len(lines) && !closes(lines[i], m[2]); i++ {
			}
			if i == len(lines) {
				return nil, fmt.Errorf("%s:%d: this code block does not end", name, start)
			}
			lang, _, _ := strings.Cut(strings.TrimSpace(m[3]), " ")
			take(block{line: start + 1, lang: lang, text: unindent(lines[start:i], len(m[1]))})
			open = false
			continue
		}
		if column < indent && !open {
			indent = 0
		}
		if column >= indent+4 && !open {
			start := i
			for i+1 < len(lines) && (blank(lines[i+1]) || strings.HasPrefix(lines[i+1], strings.Repeat(" ", indent+4))) {
				i++
			}
			end := i + 1
			for blank(lines[end-1]) {
				end--
			}
			take(block{line: start + 1, text: unindent(lines[start:end], indent+4)})
			continue
		}
		if strings.HasPrefix(strings.TrimSpace(line), "<!--") && !open {
			start := i
			for ; i < len(lines) && !strings.Contains(lines[i], "-->"); i++ {
			}
			if i == len(lines) {
				return nil, fmt.Errorf("%s:%d: this comment does not end", name, start+1)
			}
			if m := mark.FindStringSubmatch(strings.TrimSpace(strings.Join(lines[start:i+1], "\n"))); m != nil {
				marks, marked = append(marks, strings.Join(strings.Fields(m[1]), " ")), start+1
			}
			continue
		}
		if len(marks) > 0 {
			return nil, fmt.Errorf("%s:%d: no code block after this docs-check mark", name, marked)
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			s := slug(m[1])
			if n := counts[s]; n > 0 {
				d.anchors[fmt.Sprintf("%s-%d", s, n)] = true
			} else {
				d.anchors[s] = true
			}
			counts[s]++
			prose[i] = line
			open = false
			continue
		}
		if item := listItem.FindString(line); item != "" {
			indent = len(item)
		}
		prose[i] = line
		open = true
	}
	if len(marks) > 0 {
		return nil, fmt.Errorf("%s:%d: no code block after this docs-check mark", name, marked)
	}
	d.readProse(strings.Join(prose, "\n"))
	return d, nil
}

// readProse finds the code spans and links of a document's text.
func (d *document) readProse(text string) {
	lineOf := func(offset int) int { return strings.Count(text[:offset], "\n") + 1 }
	blankOut := func(s string) string { // keeps lines and byte offsets
		out := []byte(s)
		for i, c := range out {
			if c != '\n' {
				out[i] = ' '
			}
		}
		return string(out)
	}
	text = comment.ReplaceAllStringFunc(text, blankOut)
	for _, c := range codeSpans(text) {
		n := len(ticks.FindString(text[c[0]:]))
		d.spans = append(d.spans, span{lineOf(c[0]), strings.Join(strings.Fields(text[c[0]+n:c[1]-n]), " ")})
		text = text[:c[0]] + blankOut(text[c[0]:c[1]]) + text[c[1]:]
	}
	for _, pattern := range []*regexp.Regexp{inline, defined, html} {
		for _, m := range pattern.FindAllStringSubmatchIndex(text, -1) {
			d.links = append(d.links, link{lineOf(m[2]), text[m[2]:m[3]]})
		}
	}
}

// codeSpans finds the start and end of code spans. A span ends with as many
// backticks as it begins with, in the same paragraph.
func codeSpans(text string) (spans [][2]int) {
	runs := ticks.FindAllStringIndex(text, -1)
	for i := 0; i < len(runs); i++ {
		for j := i + 1; j < len(runs) && !strings.Contains(text[runs[i][1]:runs[j][0]], "\n\n"); j++ {
			if runs[j][1]-runs[j][0] == runs[i][1]-runs[i][0] {
				spans = append(spans, [2]int{runs[i][0], runs[j][1]})
				i = j
				break
			}
		}
	}
	return spans
}

// closes reports whether a line ends the block that a fence began.
func closes(line, fence string) bool {
	line = strings.TrimSpace(line)
	return len(line) >= len(fence) && strings.Trim(line, fence[:1]) == ""
}

func blank(line string) bool { return strings.TrimSpace(line) == "" }

// unindent removes the first n spaces of each line and joins the lines.
func unindent(lines []string, n int) string {
	var b strings.Builder
	for _, line := range lines {
		line = strings.TrimSuffix(line, "\r")
		for range n {
			line = strings.TrimPrefix(line, " ")
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// slug returns the anchor of a heading on GitHub.
func slug(text string) string {
	text = inline.ReplaceAllString(text, "]")
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

// split splits the target of a link. remote reports whether it is not a file of the
// repository.
func (l link) split() (path, anchor string, remote bool, err error) {
	u, err := url.Parse(l.target)
	if err != nil {
		return "", "", false, err
	}
	return u.Path, u.Fragment, u.Scheme != "" || u.Host != "", nil
}
