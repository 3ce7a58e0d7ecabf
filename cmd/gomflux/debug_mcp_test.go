package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/checkpoint"
)

// An assistant is a client of gomflux debug mcp.
type assistant struct {
	*mcp.ClientSession
	t      *testing.T
	server *exec.Cmd
	log    bytes.Buffer
}

// startAssistant starts the server in a folder.
func startAssistant(t *testing.T, program, dir string) *assistant {
	t.Helper()
	sessionsFolder(t)
	t.Setenv("GOMFLUX_MLX", absolute(libraries))
	a := &assistant{t: t, server: exec.Command(program, "debug", "mcp")}
	a.server.Dir = dir
	a.server.Stderr = &a.log
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	var err error
	if a.ClientSession, err = client.Connect(t.Context(), &mcp.CommandTransport{Command: a.server}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		end := exec.Command("gomflux", "debug", "terminate", "--user", "--yes") // what a failed test leaves
		end.Run()
		a.Close()
	})
	return a
}

// called is what a tool has returned.
type called struct {
	failed bool
	text   string
	code   float64
}

func (a *assistant) call(ctx context.Context, tool string, arguments map[string]any) called {
	a.t.Helper()
	r, err := a.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	c := called{failed: r.IsError, text: r.Content[0].(*mcp.TextContent).Text}
	c.code, _ = r.Meta["exit_code"].(float64)
	if len(r.Content) != 1 || r.StructuredContent != nil || len(c.text) > 20_000 {
		a.t.Errorf("%s: %d bytes in %d texts and %v, expected one text of at most 20 kB", tool, len(c.text), len(r.Content),
			r.StructuredContent)
	}
	return c
}

// works calls a tool that must succeed with a text.
func (a *assistant) works(tool string, arguments map[string]any, text string) called {
	a.t.Helper()
	c := a.call(a.t.Context(), tool, arguments)
	if c.failed || !strings.Contains(c.text, text) {
		a.t.Fatalf("%s: failed %v, text %s, expected %q", tool, c.failed, c.text, text)
	}
	return c
}

// refuses calls a tool that must report an error on one line.
func (a *assistant) refuses(tool string, arguments map[string]any, message string) {
	a.t.Helper()
	c := a.call(a.t.Context(), tool, arguments)
	if !c.failed || c.code != cli.ExitUsage || c.text != message+" (exit code 2)" {
		a.t.Errorf("%s: failed %v, exit code %v, %q, expected %q", tool, c.failed, c.code, c.text, message)
	}
}

type object = map[string]any

// TestAssistantSession looks into a run as an assistant does.
func TestAssistantSession(t *testing.T) {
	a := startAssistant(t, "gomflux", t.TempDir())
	run := []string{"generate", "-p", "square", "-H", "24", "-W", "40", "-s", "2", "-S", "7", "-g", "0",
		"-m", absolute(tinyModel), "-o", "a.png"}
	a.refuses("debug_vars", nil, "no session (gomflux debug start begins one)")
	a.refuses("debug_start", object{"command": []string{"models"}},
		"models makes no run (debug start takes generate, edit, inpaint, parity run, parity live)")
	a.works("debug_start", object{"command": run, "name": "one"}, "session one: stopped before the model is loaded")
	a.works("debug_break", object{"glob": "transformer.layers.0", "step": 1, "if": "out.std() > 0"}, "breakpoint 1: ")
	a.works("debug_continue", object{"session": "one", "max_wait": 50}, "stopped after transformer.layers.0@1 (breakpoint 1, hit 1)")
	a.works("debug_vars", object{"weights": true}, "attention.to_q.weight")
	a.works("debug_location", nil, "(zimageBlock)")
	a.works("debug_eval", object{"source": "x = 2 * out\n(x - out == out).all()"}, "True")
	a.refuses("debug_eval", object{"source": "-"}, "the expression is empty")
	a.works("debug_save", object{"name": "mine"}, "mine.safetensors")
	a.works("tensors_info", object{"names": []string{"mine", "mine"}}, "mine")
	a.refuses("tensors_list", object{"globs": []string{"["}},
		`"[" is not a pattern of names (such as 'transformer.layers.*')`)
	a.works("debug_remove", object{"number": 1}, "removed breakpoint 1")
	a.works("debug_terminate", nil, "session one is terminated")
	a.works("debug_trace", object{"grep": "eval"}, "EVENT")
	if a.Close(); a.log.Len() > 0 {
		t.Errorf("the server's log: %s", &a.log)
	}
	if code := a.server.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestAssistantCompares compares tensors and runs through tools.
func TestAssistantCompares(t *testing.T) {
	a := startAssistant(t, "gomflux", t.TempDir())
	dump := absolute(filepath.Join(tinyModel, "../dump"))
	tensors := filepath.Join(dump, "tensors-1.safetensors")
	c := a.works("parity_diff", object{"run": dump, "reference": dump, "all": true}, "are left out")
	if !strings.HasPrefix(c.text, "PASS: ") {
		t.Errorf("the answer begins with %.80s", c.text)
	}
	if c := a.works("parity_run", object{"run": dump}, "without hooks: "); !strings.HasPrefix(c.text, "PASS: ") || len(c.text) > 2000 {
		t.Errorf("an answer of %d bytes begins with %.80s", len(c.text), c.text)
	}
	a.works("tensors_diff", object{"tensor": tensors, "reference": tensors}, "ok")
	folder := t.TempDir()
	for name, value := range map[string]byte{"a": 1, "b": 2} {
		x := &checkpoint.Array{Name: "x", Dtype: checkpoint.U8, Shape: []int{2}, Data: []byte{1, value}}
		if err := checkpoint.WriteFile(filepath.Join(folder, name+".safetensors"), []*checkpoint.Array{x}, nil); err != nil {
			t.Fatal(err)
		}
	}
	files := object{"tensor": filepath.Join(folder, "a.safetensors"), "reference": filepath.Join(folder, "b.safetensors")}
	if c := a.works("tensors_diff", files, "the tensors differ (exit code 1)"); c.code != cli.ExitFailure {
		t.Errorf("exit code %v", c.code)
	}
	files["atol"], files["rtol"] = 1.5, "0"
	a.works("tensors_diff", files, "ok")
	a.refuses("parity_run", object{"run": "nowhere"}, "nowhere: no such file or directory")
}

// TestAssistantGone: a request that is cancelled and a client that goes leave the session alive and no
// process of a command.
func TestAssistantGone(t *testing.T) {
	a := startAssistant(t, "gomflux", t.TempDir())
	a.works("debug_start", object{"command": []string{"parity", "run",
		absolute(filepath.Join(tinyModel, "../dump"))}}, "session 1: stopped")
	// the run takes many seconds
	a.works("debug_break", object{"glob": "*", "if": "[x for x in range(1000000)] == []"}, "breakpoint 1: ")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := a.CallTool(ctx, &mcp.CallToolParams{Name: "debug_continue"}); err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("a cancelled call ended with %v after %v", err, time.Since(began))
	}
	server := exec.CommandContext(t.Context(), "gomflux", "debug", "mcp")
	in, err := server.StdinPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},`+
		`"clientInfo":{"name":"test","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"debug_continue","arguments":{"max_wait":40}}}
`)
	time.Sleep(300 * time.Millisecond)
	began = time.Now()
	in.Close()
	if err := server.Wait(); err != nil || time.Since(began) > 10*time.Second {
		t.Errorf("the server ended after %v: %v", time.Since(began), err)
	}
	list, err := exec.Command("gomflux", "debug", "sessions", "--user").Output()
	if err != nil || !regexp.MustCompile(`(?m)^1 +gomflux +(starting|loading|running) `).Match(list) {
		t.Errorf("sessions: %s (%v)", list, err)
	}
}

// everyFault is the environment variable that has faults planted in code that is built for it.
const everyFault = "GOMFLUX_FAULTS"

// TestAssistantProtocol replays the calls by which an assistant has found a planted fault. The program with the fault
// is built for that; without the environment variable the calls are only compared with the tools and with AGENTS.md.
func TestAssistantProtocol(t *testing.T) {
	root := absolute("../..")
	text, err := os.ReadFile("testdata/assistant.txt")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "AGENTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	planted := map[string]string{}
	program, dir := "gomflux", t.TempDir()
	if os.Getenv(everyFault) == "all" {
		dir = root
	}
	t.Setenv("GOMFLUX_LOG_DIR", t.TempDir())
	var a *assistant
	var tools []string
	answer, calls := "", 0
	for part := range strings.SplitSeq(string(text), "\n\n") {
		for line := range strings.Lines(part) {
			word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch {
			case word == "file" || word == "at" || word == "plant":
				planted[word] = rest
			case word == ">":
				if a == nil {
					if dir == root {
						program = buildPlanted(t, root, planted)
					}
					a = startAssistant(t, program, dir)
					list, err := a.ListTools(t.Context(), nil)
					if err != nil {
						t.Fatal(err)
					}
					for _, tool := range list.Tools {
						tools = append(tools, tool.Name)
					}
				}
				tool, arguments, _ := strings.Cut(rest, " ")
				given := object{}
				if err := json.Unmarshal([]byte(arguments), &given); err != nil {
					t.Fatalf("%s: %v", tool, err)
				}
				calls++
				if !slices.Contains(tools, tool) || !strings.Contains(string(page), tool) {
					t.Errorf("%s is no tool, or not in AGENTS.md", tool)
				}
				answer = ""
				if dir == root {
					answer = a.call(t.Context(), tool, given).text
				}
			case strings.HasPrefix(part, "> ") && dir == root:
				if !strings.Contains(answer, strings.TrimSpace(line)) {
					t.Fatalf("expected %q in the answer\n%s", line, answer)
				}
			}
		}
	}
	if calls != 6 {
		t.Errorf("%d calls, expected 6", calls)
	}
}

// buildPlanted builds the command with a line planted before another one.
func buildPlanted(t *testing.T, root string, fault map[string]string) string {
	t.Helper()
	dir, name := t.TempDir(), filepath.Join(root, fault["file"])
	source, err := os.ReadFile(name)
	if err != nil || strings.Count(string(source), fault["at"]) != 1 {
		t.Fatalf("%s: expected %q once (%v)", name, fault["at"], err)
	}
	changed, overlay := filepath.Join(dir, "planted.go"), filepath.Join(dir, "overlay.json")
	text := strings.Replace(string(source), fault["at"], fault["plant"]+"\n"+fault["at"], 1)
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{name: changed}})
	if err := errors.Join(err, os.WriteFile(changed, []byte(text), 0o666), os.WriteFile(overlay, list, 0o666)); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "gomflux")
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}
