package main

import (
	"fmt"
	"path"
	"strings"
)

// checkLinks finds links to files and headings that do not exist. files has every
// file and folder of a fresh clone by its slash path.
func checkLinks(docs map[string]*document, files map[string]bool) (problems []string) {
	for _, d := range docs {
		for _, l := range d.links {
			file, anchor, remote, err := l.split()
			if err != nil {
				problems = append(problems, fmt.Sprintf("%s:%d: link %s: %v", d.name, l.line, l.target, err))
				continue
			}
			if remote {
				continue
			}
			to := d.name
			if file != "" {
				to = path.Join(path.Dir(d.name), file)
				if strings.HasPrefix(file, "/") || !files[to] {
					problems = append(problems, fmt.Sprintf("%s:%d: link %s: there is no file %s in the repository", d.name,
						l.line, l.target, to))
					continue
				}
			}
			if target, ok := docs[to]; ok && anchor != "" && !target.anchors[anchor] {
				problems = append(problems, fmt.Sprintf("%s:%d: link %s: %s has no such heading", d.name, l.line, l.target, to))
			}
		}
	}
	return problems
}
