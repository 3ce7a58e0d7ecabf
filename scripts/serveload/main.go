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
// It prints a table of what it saw, or JSON with -json, and exits with 1 if a check fails.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// options are the options of the command line.
type options struct {
	program   string
	url       string
	tokenFile string
	clients   int
	duration  time.Duration
	cancels   int
	steps     int
	size      int
	seed      uint64
	models    []string // with which the server is started, the default one first
	// jobs is the number of jobs of a soak, 0 for the other parts, and round how many there are before
	// each time without jobs, which is idle.
	jobs, round int
	idle        time.Duration
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
	flag.IntVar(&o.cancels, "cancels", 1000, "number of jobs that are canceled")
	flag.IntVar(&o.steps, "steps", 2, "denoising steps of most images")
	flag.IntVar(&o.size, "size", 64, "height and width of images in pixels")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of what is random")
	flag.Float64Var(&o.leeway, "leeway", 0.1, "the part by which numbers of images of clients, and memory, may differ")
	flag.IntVar(&o.jobs, "soak", 0, "make this number of jobs with times without jobs between them, instead of the usual parts")
	flag.IntVar(&o.round, "round", 100, "with -soak, number of jobs before each time without jobs")
	flag.DurationVar(&o.idle, "idle", time.Minute, "with -soak, time without jobs")
	flag.Func("model", "`name` of a model of the server that is started; -soak uses all of them (can be repeated; default: shapes)",
		func(name string) error { o.models = append(o.models, name); return nil })
	asJSON := flag.Bool("json", false, "print JSON")
	flag.Parse()
	if flag.NArg() > 0 || o.clients < 2 || o.steps < 1 || o.size < 1 || o.round < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := run(ctx, o)
	if err != nil {
		fmt.Fprintf(os.Stderr, "serveload: %v\n", err)
		os.Exit(1)
	}
	if *asJSON {
		text, _ := json.MarshalIndent(r, "", "  ") // numbers and strings
		fmt.Println(string(text))
	} else {
		fmt.Print(r)
	}
	if !r.OK() {
		stop()
		os.Exit(1)
	}
}

// run starts a server or finds one, and loads it.
func run(ctx context.Context, o options) (*report, error) {
	var s *server
	var err error
	if o.url != "" {
		s, err = findServer(strings.TrimSuffix(o.url, "/"), o.tokenFile)
	} else {
		s, err = startServer(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	defer s.kill()
	return newLoad(o, s).run(ctx)
}
