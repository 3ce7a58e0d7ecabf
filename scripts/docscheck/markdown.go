package main

import (
	"bytes"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"
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
	mark    = regexp.MustCompile(`(?s)^<!--\s*docs-check:\s*(.*?)\s*-->\s*$`)
	html    = regexp.MustCompile(`\b(?:href|src)="([^"]+)"`)
	comment = regexp.MustCompile(`(?s)<!--.*?-->`)
	to      = regexp.MustCompile(`\]\([^)]*\)`)
)

// parse parses Markdown.
func parse(name, content string) (*document, error) {
	source := []byte(strings.ReplaceAll(content, "\r\n", "\n"))
	d := &document{name: name, anchors: map[string]bool{}}
	var marks []string
	marked := 0 // the line of the last mark
	err := ast.Walk(goldmark.DefaultParser().Parse(text.NewReader(source)), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		line := 1 + bytes.Count(source[:max(0, n.Pos())], []byte("\n"))
		take := func(lang string, line int) {
			d.blocks = append(d.blocks, block{line, lang, string(n.Lines().Value(source)), marks})
			marks = nil
		}
		linked := func(target string) {
			if target != "" {
				d.links = append(d.links, link{line, target})
			}
		}
		switch n := n.(type) {
		case *ast.CodeBlock:
			take("", line)
		case *ast.FencedCodeBlock:
			if !closed(n, source) {
				return 0, fmt.Errorf("%s:%d: this code block does not end", name, line-1)
			}
			take(string(n.Language(source)), line)
		case *ast.HTMLBlock:
			content := string(n.Lines().Value(source))
			if n.HasClosure() {
				content += string(n.ClosureLine.Value(source))
			}
			if m := mark.FindStringSubmatch(content); m != nil {
				marks, marked = append(marks, strings.Join(strings.Fields(m[1]), " ")), line
			} else if n.HTMLBlockType == ast.HTMLBlockType2 && !strings.Contains(content, "-->") {
				return 0, fmt.Errorf("%s:%d: this comment does not end", name, line)
			}
			for _, m := range html.FindAllStringSubmatch(comment.ReplaceAllString(content, ""), -1) {
				linked(m[1])
			}
			return ast.WalkContinue, nil
		case *ast.Heading:
			s := slug(string(n.Lines().Value(source)))
			for i := 1; d.anchors[s]; i++ {
				s = fmt.Sprintf("%s-%d", slug(string(n.Lines().Value(source))), i)
			}
			d.anchors[s] = true
		case *ast.CodeSpan:
			var words []string
			for c := n.FirstChild(); c != nil; c = c.NextSibling() {
				words = append(words, strings.Fields(string(c.(*ast.Text).Segment.Value(source)))...)
			}
			d.spans = append(d.spans, span{line, strings.Join(words, " ")})
		case *ast.Link:
			linked(string(n.Destination))
		case *ast.Image:
			linked(string(n.Destination))
		case *ast.LinkReferenceDefinition:
			linked(string(n.Destination))
		case *ast.RawHTML:
			for _, m := range html.FindAllSubmatch(n.Segments.Value(source), -1) {
				linked(string(m[1]))
			}
		}
		if len(marks) > 0 && n.Type() == ast.TypeInline {
			return 0, fmt.Errorf("%s:%d: no code block after this docs-check mark", name, marked)
		}
		return ast.WalkContinue, nil
	})
	if err == nil && len(marks) > 0 {
		err = fmt.Errorf("%s:%d: no code block after this docs-check mark", name, marked)
	}
	return d, err
}

// closed reports whether a fence ends a block that has lines, and not the document.
func closed(n *ast.FencedCodeBlock, source []byte) bool {
	lines := n.Lines()
	if lines.Len() == 0 {
		return true
	}
	next := strings.TrimLeft(string(source[lines.At(lines.Len()-1).Stop:]), " >")
	return strings.HasPrefix(next, "```") || strings.HasPrefix(next, "~~~")
}

// slug returns the anchor of a heading on GitHub.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, to.ReplaceAllString(heading, "]"))
}

// checkLinks finds links to files and headings that do not exist. files has every
// file and folder of a fresh clone by its slash path.
func checkLinks(docs map[string]*document, files map[string]bool) (problems []string) {
	for _, d := range docs {
		for _, l := range d.links {
			problem := func(format string, args ...any) {
				problems = append(problems, fmt.Sprintf("%s:%d: link %s: ", d.name, l.line, l.target)+fmt.Sprintf(format, args...))
			}
			u, err := url.Parse(l.target)
			if err != nil {
				problem("%v", err)
				continue
			}
			if u.Scheme != "" || u.Host != "" {
				continue
			}
			file := d.name
			if u.Path != "" {
				file = path.Join(path.Dir(d.name), u.Path)
			}
			if target := docs[file]; strings.HasPrefix(u.Path, "/") || !files[file] {
				problem("there is no file %s in the repository", file)
			} else if target != nil && u.Fragment != "" && !target.anchors[u.Fragment] {
				problem("%s has no such heading", file)
			}
		}
	}
	return problems
}
