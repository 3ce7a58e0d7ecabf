// Command serveload tests gomflux serve under load.
//
//	go run ./scripts/serveload [flags]
//
// It starts gomflux serve with the built-in model, or uses a server that runs (-url). Its clients,
// each with a token of its own, use all APIs by turns, in three parts:
//
//   - load: clients that always have a job. One in sixteen is greedy and has several. All images
//     must be there once, with the prompt and the seed of their request. No client may get more than
//     the others, and the server's memory may not grow.
//   - cancel: jobs are canceled at random moments, with DELETE or by closing the connection, while
//     others go on.
//   - stop: the server gets SIGTERM while all clients wait. Each must be answered, and the server
//     must exit with 0. This is left out with -url.
//
// With -soak N it makes N jobs instead, of changing sizes and models (-model), of which one in eight is
// canceled. After every -round jobs it waits until the server has given its memory back, and for -idle.
// A table has the memory at these times, which may not grow. A short run is
//
//	go run ./scripts/serveload -soak 100 -round 20 -idle 1s -size 32
//
// It prints a table of what it saw, and exits with 1 if a check fails.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gomflux/gomflux/serve"
)

// options are the options of the command line.
type options struct {
	program, url, tokenFile string
	clients, cancels        int
	steps, size             int
	seed                    uint64
	duration                time.Duration
	models                  []string // with which the server is started, the default one first
	// jobs is the number of jobs of a soak, 0 for the other parts, and round how many there are before
	// each time without jobs, which is rest.
	jobs, round int
	rest        time.Duration // 0 without a soak
	// leeway is the part by which the numbers of images of clients and the memory may differ.
	leeway float64
}

func main() {
	var o options
	flag.StringVar(&o.program, "program", "bin/gomflux", "the `file` to start, as make build makes it")
	flag.StringVar(&o.url, "url", "", "`URL` of a server that runs, instead of starting one")
	flag.StringVar(&o.tokenFile, "token-file", "", "with -url, its `file` of tokens, one for each client")
	flag.IntVar(&o.clients, "clients", 64, "number of clients")
	flag.DurationVar(&o.duration, "duration", 10*time.Minute, "time of the first part")
	flag.IntVar(&o.cancels, "cancels", 1000, "about the number of jobs that are canceled")
	flag.IntVar(&o.steps, "steps", 2, "denoising steps of most images")
	flag.IntVar(&o.size, "size", 64, "height and width of images in pixels")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of what is random")
	flag.Float64Var(&o.leeway, "leeway", 0.1, "the part by which numbers of images of clients, and memory, may differ")
	flag.IntVar(&o.jobs, "soak", 0, "make this number of jobs with times without jobs between them, instead of the usual parts")
	flag.IntVar(&o.round, "round", 100, "with -soak, number of jobs before each time without jobs")
	flag.DurationVar(&o.rest, "idle", time.Minute, "with -soak, time without jobs")
	flag.Func("model", "`name` of a model of the server that is started; -soak uses all of them (can be repeated; default: shapes)",
		func(name string) error { o.models = append(o.models, name); return nil })
	flag.Parse()
	if o.jobs == 0 {
		o.rest = 0
	}
	if len(o.models) == 0 && o.url == "" {
		o.models = []string{"shapes"}
	}
	if flag.NArg() > 0 || o.clients < 2 || o.steps < 1 || o.size < 1 || o.round < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	l, err := run(ctx, o)
	if err != nil {
		fmt.Fprintf(os.Stderr, "serveload: %v\n", err)
	}
	if err != nil || len(l.failed) > 0 {
		os.Exit(1)
	}
}

// run starts a server or uses one that runs, and loads it.
func run(ctx context.Context, o options) (*load, error) {
	s := &server{url: strings.TrimSuffix(o.url, "/")}
	if o.url == "" {
		folder, err := os.MkdirTemp("", "serveload")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(folder)
		ctx, cancel := context.WithCancel(ctx)
		cmd := exec.CommandContext(ctx, o.program, "serve", "--listen", "127.0.0.1:0", "--token-file", filepath.Join(folder, "tokens"),
			"--pictures", filepath.Join(folder, "pictures"), "--pictures-size", "20MB", "--quiet")
		defer func() { cancel(); cmd.Wait() }() // its error is known, or does not matter any more
		for _, name := range o.models {
			cmd.Args = append(cmd.Args, "--model", name)
		}
		if o.tokenFile, err = writeTokens(folder, o.clients); err != nil {
			return nil, err
		}
		if err := s.start(cmd); err != nil {
			return nil, err
		}
	}
	if o.tokenFile != "" {
		var err error
		if s.tokens, err = serve.ReadTokens(o.tokenFile); err != nil {
			return nil, err
		}
	}
	l := newLoad(o, s, os.Stdout)
	return l, l.run(ctx)
}

// A server is what is tested.
type server struct {
	url    string
	tokens []serve.Token // of the clients, which share them if they are more; empty without tokens
	pid    int           // 0 if it is not known
	stop   func() error  // nil if it is not to be stopped
}

// writeTokens writes a file of a token for each client.
func writeTokens(folder string, clients int) (name string, err error) {
	var text strings.Builder
	for i := range clients {
		fmt.Fprintf(&text, "client%d:the-token-of-client-%06d\n", i, i)
	}
	name = filepath.Join(folder, "tokens")
	return name, os.WriteFile(name, []byte(text.String()), 0o600)
}

// start starts a server, and waits for its address.
func (s *server) start(cmd *exec.Cmd) error {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("%w (make build makes it)", err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		cmd.Wait()
		return fmt.Errorf("%s: %s", cmd, &stderr)
	}
	s.url, s.pid = strings.TrimSuffix(strings.TrimSpace(line), "/"), cmd.Process.Pid
	s.stop = func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%w: %s", err, &stderr)
		}
		return nil
	}
	return nil
}

// resident returns the memory of the server in bytes, 0 if it is not known.
func (s *server) resident() float64 {
	if s.pid == 0 {
		return 0
	}
	out, _ := exec.Command("ps", "-o", "rss=", "-p", strconv.Itoa(s.pid)).Output()
	kilobytes, _ := strconv.ParseFloat(strings.TrimSpace(string(out)), 64) // nothing is 0
	return kilobytes * 1024
}
