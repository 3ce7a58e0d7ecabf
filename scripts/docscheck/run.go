package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// blockTime is how long one block may take.
const blockTime = 5 * time.Minute

// placeholder is what documentation says for the path of a checkout.
const placeholder = "/path/to/gomflux"

// A runner runs code blocks in a copy of the checkout.
type runner struct {
	root  string // the copy
	env   []string
	helps map[string]string // what gomflux COMMAND --help says
}

// newRunner copies the checkout's files into dir and builds it there. .setup is
// linked, as it is large and only read.
func newRunner(dir string, names []string) (*runner, error) {
	r := &runner{root: filepath.Join(dir, "gomflux"), helps: map[string]string{}}
	home := filepath.Join(dir, "home")
	copies := exec.Command("bash", "-euo", "pipefail", "-c", `mkdir "$0" "$1"; ln -s "$PWD/.setup" "$0"
tar --null -T - -cf - | tar -xf - -C "$0"`, r.root, home)
	copies.Stdin = strings.NewReader(strings.Join(names, "\x00"))
	if out, err := copies.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copying the checkout: %w\n%s", err, out)
	}
	// an empty home, so that nobody's models and settings are used, but the
	// caches that the toolchains have there
	caches, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOPATH").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	c := strings.Split(string(caches), "\n")
	user := os.Getenv("HOME")
	r.env = append(os.Environ(), "HOME="+home, "TERM=dumb", "GOCACHE="+c[0], "GOMODCACHE="+c[1], "GOPATH="+c[2],
		"CARGO_HOME="+cmp.Or(os.Getenv("CARGO_HOME"), filepath.Join(user, ".cargo")),
		"RUSTUP_HOME="+cmp.Or(os.Getenv("RUSTUP_HOME"), filepath.Join(user, ".rustup")))
	r.env = slices.DeleteFunc(r.env, func(v string) bool {
		unset := []string{"GOMFLUX_MLX", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(unset, name)
	})
	if _, err := r.bash(".", "make build"); err != nil {
		return nil, fmt.Errorf("make build: %w", err)
	}
	return r, nil
}

// document runs the code of a file and returns what is wrong with it.
func (r *runner) document(d *document) (problems []string) {
	for _, b := range d.blocks {
		where, start := fmt.Sprintf("%s:%d", d.name, b.line), time.Now()
		if err := r.block(where, b); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", where, err))
			continue
		}
		if b.lang != "text" {
			log.Printf("%s ok (%.1f s)", where, time.Since(start).Seconds())
		}
	}
	for _, s := range d.spans {
		if name, _, _ := strings.Cut(s.text, " "); name != "make" && filepath.Base(name) != "gomflux" {
			continue
		}
		for _, c := range commands(s.text) {
			if len(c.words) == 1 {
				continue // a name
			}
			if err := r.examine(c.words); err != nil {
				problems = append(problems, fmt.Sprintf("%s:%d: %v", d.name, s.line, err))
			}
		}
	}
	return problems
}

// block runs a block of code.
func (r *runner) block(where string, b block) error {
	o, err := readMarks(b.marks)
	switch {
	case err != nil || b.lang == "text":
		return err
	case b.lang == "" || b.lang == "sh":
		return r.shell(where, b, o)
	case b.lang == "go":
		return r.program(where, b.text, o)
	case b.lang != "json":
		return fmt.Errorf("a code block of language %q, which docs-check does not know (it knows sh, go, json and text)", b.lang)
	case !json.Valid([]byte(b.text)):
		return errors.New("this is not valid JSON")
	}
	return nil
}

// An options is what the marks before a block ask for.
type options struct {
	skip     bool
	reason   string
	prefixes map[string]string // of lines that are not run, and why
	in       string
}

var prefixed = regexp.MustCompile("^`([^`]+)` *(.*)$")

func readMarks(marks []string) (o options, err error) {
	o.prefixes = map[string]string{}
	for _, m := range marks {
		verb, rest, _ := strings.Cut(m, " ")
		switch p := prefixed.FindStringSubmatch(rest); {
		case verb == "skip" && p != nil && p[2] != "":
			o.prefixes[p[1]] = p[2]
		case verb == "skip" && p == nil && rest != "":
			o.skip, o.reason = true, rest
		case verb == "skip":
			return o, fmt.Errorf("the mark %q gives no reason", m)
		case verb == "in" && filepath.IsLocal(rest):
			o.in = rest
		case verb == "needs" && filepath.IsLocal(rest):
			if _, err := os.Stat(rest); err != nil {
				o.skip, o.reason = true, "there is no "+rest
			}
		default:
			return o, fmt.Errorf("docs-check does not know the mark %q", m)
		}
	}
	return o, nil
}

// shell runs a block of commands, but for those that are not to be run.
func (r *runner) shell(where string, b block, o options) error {
	used := map[string]bool{}
	script := strings.Split(b.text, "\n")
	for _, c := range commands(b.text) {
		reason := o.reason
		for prefix, why := range o.prefixes {
			if strings.HasPrefix(script[c.line], prefix) {
				reason, used[prefix] = why, true
			}
		}
		if reason == "" {
			continue
		}
		log.Printf("%s not run: %s (%s)", where, strings.Join(c.words, " "), reason)
		if err := r.examine(c.words); err != nil {
			return err
		}
		last := c.line
		for strings.HasSuffix(script[last], `\`) {
			script[last], last = "", last+1
		}
		script[c.line], script[last] = "", ""
	}
	for prefix := range o.prefixes {
		if !used[prefix] {
			return fmt.Errorf("no line starts with %q, which a mark says is not run", prefix)
		}
	}
	if o.skip {
		return nil
	}
	dir := o.in
	if dir == programFolder {
		// what its reader would have: the program and no module yet
		for _, name := range []string{"go.mod", "go.sum"} {
			if err := os.Remove(filepath.Join(r.root, dir, name)); err != nil {
				return fmt.Errorf("no program comes before this: %w", err)
			}
		}
	}
	_, err := r.bash(dir, strings.Join(script, "\n"))
	return err
}

// programFolder is where Go programs are put. It is a module of its own.
const programFolder = "program"

// program compiles a Go program and, unless it is skipped, runs it. A skipped block
// may also be an excerpt, which only has to parse.
func (r *runner) program(where, text string, o options) error {
	f, err := parser.ParseFile(token.NewFileSet(), "main.go", text, parser.PackageClauseOnly)
	if err != nil && o.skip {
		_, err := parser.ParseFile(token.NewFileSet(), "excerpt.go", "package excerpt\n"+text, 0)
		return err
	}
	if err != nil || f.Name.Name != "main" {
		return errors.New("this is not a whole Go program (package main)")
	}
	dir := filepath.Join(r.root, programFolder)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(text), 0o666); err != nil {
		return err
	}
	// a module with the requirements of this one
	script := `cp ../go.sum . && sed 's/^module .*/module program/' ../go.mod >go.mod
module=$(cd .. && go list -m) && go mod edit -require="$module@v0.0.0" -replace="$module=.."
go vet . && go build -o program .`
	if o.skip {
		log.Printf("%s compiled and not run (%s)", where, o.reason)
	} else {
		script += " && GOMFLUX_MLX=../.setup/lib ./program"
	}
	_, err = r.bash(programFolder, script)
	return err
}

// bash runs a script in a folder of the copy and returns its output, of which an error has the end.
func (r *runner) bash(dir, script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), blockTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", strings.ReplaceAll(script, placeholder, r.root))
	cmd.Dir = filepath.Join(r.root, dir)
	cmd.Env = r.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its children end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("took longer than %v", blockTime)
	}
	if err != nil {
		const most = 1 << 14
		err = fmt.Errorf("%w\n%s", err, out[max(0, len(out)-most):])
	}
	return string(out), err
}

// examine checks a command that is not run as far as that can be done.
func (r *runner) examine(words []string) error {
	var err error
	switch {
	case words[0] == "make":
		_, err = r.bash(".", "make -n "+quote(words[1:]))
	case filepath.Base(words[0]) == "gomflux":
		return r.examineFlags(words[1:])
	case words[0] == "go" && len(words) > 2 && words[1] == "run" && strings.HasPrefix(words[2], "./"):
		_, err = r.bash(".", "go list "+quote(words[2:3]))
	case strings.Contains(words[0], "/"):
		_, err = os.Stat(filepath.Join(r.root, strings.ReplaceAll(words[0], placeholder, ".")))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(words, " "), err)
	}
	return nil
}

// help returns the help of a command.
func (r *runner) help(name []string) (help string, err error) {
	key := strings.Join(name, " ")
	if help = r.helps[key]; help != "" {
		return help, nil
	}
	if help, err = r.bash(".", "bin/gomflux "+quote(append(slices.Clip(name), "--help"))); err != nil {
		return "", fmt.Errorf("gomflux %s --help: %w", key, err)
	}
	r.helps[key] = help
	return help, nil
}

var flagName = regexp.MustCompile(`^(--[a-z][a-z0-9-]*|-[A-Za-z])(=.*)?$`)

// examineFlags looks for the command and for each flag in its help.
func (r *runner) examineFlags(args []string) error {
	var name []string
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name = args[:1]
	}
	if len(args) > 1 && args[0] == "help" && args[1] == strings.ToLower(args[1]) { // and not help TOPIC
		if _, err := r.bash(".", "bin/gomflux "+quote(args[:2])); err != nil {
			return fmt.Errorf("there is no gomflux help %s", args[1])
		}
	}
	help, err := r.help(name)
	if err != nil {
		return err
	}
	// of a command with commands, such as tensors list
	if len(args) > 1 && regexp.MustCompile(`(?m)^Available Commands:$(\n  .*)*\n  `+regexp.QuoteMeta(args[1])+` `).MatchString(help) {
		name = args[:2]
		if help, err = r.help(name); err != nil {
			return err
		}
	}
	for i, arg := range args {
		if arg == "--" && i+1 < len(args) { // a command of its own follows, as after launch
			return r.examineFlags(args[i+1:])
		}
		m := flagName.FindStringSubmatch(arg)
		if m == nil {
			continue
		}
		if !regexp.MustCompile(`(?m)(^|[\s,])` + m[1] + `([\s,=]|$)`).MatchString(help) {
			return fmt.Errorf("gomflux %s has no flag %s", strings.Join(name, " "), m[1])
		}
	}
	return nil
}

// quote makes words safe for the shell.
func quote(words []string) string {
	var quoted []string
	for _, w := range words {
		quoted = append(quoted, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	return strings.Join(quoted, " ")
}
