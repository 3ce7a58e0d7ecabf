package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A server is what is tested.
type server struct {
	url    string
	tokens []string // of the clients, which share them if they are more; empty without tokens
	pid    int      // 0 if it is not known
	stop   func() error
	kill   func()
}

// token returns the token of a client, "" without tokens.
func (s *server) token(client int) string {
	if len(s.tokens) == 0 {
		return ""
	}
	return s.tokens[client%len(s.tokens)]
}

// findServer returns a server that runs already.
func findServer(url, tokenFile string) (*server, error) {
	s := &server{url: url, kill: func() {}}
	if tokenFile == "" {
		return s, nil
	}
	text, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if _, token, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && line[0] != '#' {
			s.tokens = append(s.tokens, token)
		}
	}
	return s, nil
}

// newTokens returns the tokens of clients, and the text of a file with them.
func newTokens(clients int) (tokens []string, file string) {
	for i := range clients {
		tokens = append(tokens, fmt.Sprintf("the-token-of-client-%06d", i))
		file += fmt.Sprintf("client%d:%s\n", i, tokens[i])
	}
	return tokens, file
}

// startServer starts gomflux serve on a free port, with a small gallery in a temporary folder.
func startServer(ctx context.Context, o options) (*server, error) {
	folder, err := os.MkdirTemp("", "serveload")
	if err != nil {
		return nil, err
	}
	tokens, file := newTokens(o.clients)
	tokenFile := filepath.Join(folder, "tokens")
	if err := os.WriteFile(tokenFile, []byte(file), 0o600); err != nil {
		return nil, err
	}
	args := []string{"serve", "--listen", "127.0.0.1:0", "--token-file", tokenFile, "--pictures", filepath.Join(folder, "pictures"),
		"--pictures-size", "20MB", "--quiet"}
	for _, name := range o.models {
		args = append(args, "--model", name)
	}
	if len(o.models) == 0 {
		args = append(args, "--model", "shapes")
	}
	cmd := exec.CommandContext(ctx, o.program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w (make build makes it)", err)
	}
	kill := func() {
		cmd.Process.Kill()
		cmd.Wait() // its error is known, or does not matter any more
		os.RemoveAll(folder)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		kill()
		return nil, fmt.Errorf("%s serve: %s", o.program, &stderr)
	}
	return &server{
		url: strings.TrimSuffix(strings.TrimSpace(line), "/"), tokens: tokens, pid: cmd.Process.Pid, kill: kill,
		stop: func() error {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				return err
			}
			if err := cmd.Wait(); err != nil {
				return fmt.Errorf("%w: %s", err, &stderr)
			}
			return nil
		},
	}, nil
}

// metrics returns the values of /metrics, by name and labels.
func (s *server) metrics(ctx context.Context) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c := client{http.DefaultClient, s.url, s.token(0)}
	resp, err := c.send(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("/metrics: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	values := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		i := strings.LastIndexByte(line, ' ')
		if line[0] == '#' || i < 0 {
			continue
		}
		values[line[:i]], _ = strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
	}
	return values, err
}

// rest returns the memory of the server, of which metrics were read.
func (s *server) rest(m map[string]float64, began time.Time) rest {
	return rest{
		Seconds: time.Since(began).Seconds(), Resident: resident(s.pid), Active: m["gomflux_memory_bytes"],
		Cache: m["gomflux_cache_memory_bytes"], Peak: m["gomflux_peak_memory_bytes"],
	}
}

// resident returns the memory of a process in bytes, 0 if it is not known.
func resident(pid int) float64 {
	if pid == 0 {
		return 0
	}
	out, err := exec.Command("ps", "-o", "rss=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	return n * 1024
}

// idle waits until the server has no jobs.
func (s *server) idle(ctx context.Context) error {
	return s.await(ctx, "jobs of clients that are gone are still there after a minute", func(m map[string]float64) bool {
		return m[`gomflux_jobs{state="queued"}`]+m[`gomflux_jobs{state="loading"}`]+m[`gomflux_jobs{state="running"}`] == 0
	})
}

// await waits for up to a minute until the metrics are as wanted.
func (s *server) await(ctx context.Context, problem string, wanted func(m map[string]float64) bool) error {
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(50 * time.Millisecond) {
		if m, err := s.metrics(ctx); err != nil || wanted(m) {
			return err
		}
	}
	return errors.New(problem)
}
