package generate

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/picture"
)

// templateFields are the fields in braces of an output name.
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

// expandName replaces the fields of an output name. To a name for several images it
// appends their seeds, as in mflux, and for several prompts also their numbers.
func expandName(name string, s picture.Settings, index, images, prompts int) (string, error) {
	if strings.Contains(filepath.Dir(name), "{") {
		return "", fmt.Errorf("output %s: fields are allowed in the file name, not in the folder", name)
	}
	has := func(field string) bool { return strings.Contains(name, field) }
	if images > 1 && !has("{index}") {
		end := ""
		if prompts > 1 && !has("{prompt}") {
			end = "_{index}"
		}
		if images > prompts && !has("{seed}") {
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
			known := strings.Join(cli.SortedKeys(templateFields), "}, {")
			return "", fmt.Errorf("output %s: unknown field {%s}, expected one of {%s}", name, field, known)
		}
		b.WriteString(fill(s, index))
		rest = after
	}
}

// notInWords matches what does not stay in words of file names.
var notInWords = regexp.MustCompile(`[^\p{L}\p{Nd}.]+`)

// fileWord converts text to a part of a file name.
func fileWord(s string) string {
	const most = 60 // runes
	word := []rune(strings.TrimPrefix(notInWords.ReplaceAllString(strings.ToLower(s), "-"), "-"))
	return cmp.Or(strings.Trim(string(word[:min(most, len(word))]), ".-"), "_")
}
