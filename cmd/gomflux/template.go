package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gomflux/gomflux/picture"
)

// templateFields are what an output name may have in braces.
var templateFields = map[string]func(s picture.Settings, index int) string{
	"seed":      func(s picture.Settings, _ int) string { return strconv.FormatUint(s.Seed, 10) },
	"index":     func(_ picture.Settings, i int) string { return strconv.Itoa(i + 1) },
	"model":     func(s picture.Settings, _ int) string { return fileWord(filepath.Base(s.Model)) },
	"prompt":    func(s picture.Settings, _ int) string { return fileWord(s.Prompt) },
	"steps":     func(s picture.Settings, _ int) string { return strconv.Itoa(s.Steps) },
	"guidance":  func(s picture.Settings, _ int) string { return strconv.FormatFloat(s.Guidance, 'g', -1, 64) },
	"height":    func(s picture.Settings, _ int) string { return strconv.Itoa(s.Height) },
	"width":     func(s picture.Settings, _ int) string { return strconv.Itoa(s.Width) },
	"scheduler": func(s picture.Settings, _ int) string { return fileWord(s.Scheduler) },
	"date":      func(s picture.Settings, _ int) string { return s.Created.Local().Format(time.DateOnly) },
	"time":      func(s picture.Settings, _ int) string { return s.Created.Local().Format("150405") },
}

// expandName fills in an output name's fields. Several pictures under one name
// get their seeds at its end, as in mflux, and those of several prompts their
// numbers too.
func expandName(name string, s picture.Settings, index, pictures, prompts int) (string, error) {
	if strings.Contains(filepath.Dir(name), "{") {
		return "", fmt.Errorf("output %s: fields can be in the file's name, not in its folder's", name)
	}
	has := func(field string) bool { return strings.Contains(name, field) }
	if pictures > 1 && !has("{index}") {
		end := ""
		if prompts > 1 && !has("{prompt}") {
			end = "_{index}"
		}
		if pictures > prompts && !has("{seed}") {
			end += "_seed_{seed}"
		}
		ext := filepath.Ext(name)
		name = strings.TrimSuffix(name, ext) + end + ext
	}
	var b strings.Builder
	for rest := name; ; {
		text, after, ok := strings.Cut(rest, "{")
		b.WriteString(text)
		if !ok {
			return b.String(), nil
		}
		field, after, ok := strings.Cut(after, "}")
		if !ok {
			return "", fmt.Errorf("output %s: { without }", name)
		}
		fill := templateFields[field]
		if fill == nil {
			return "", fmt.Errorf("output %s: {%s}: expected one of {%s}", name, field, strings.Join(sortedKeys(templateFields), "}, {"))
		}
		b.WriteString(fill(s, index))
		rest = after
	}
}

// fileWord makes a part of a file's name from a text.
func fileWord(s string) string {
	const most = 60 // runes
	var b strings.Builder
	n, gap := 0, false
	for _, r := range strings.ToLower(s) {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '.' {
			gap = n > 0
			continue
		}
		if gap {
			b.WriteByte('-')
			n++
		}
		if n >= most {
			break
		}
		gap = false
		b.WriteRune(r)
		n++
	}
	if out := strings.Trim(b.String(), ".-"); out != "" {
		return out
	}
	return "_"
}
