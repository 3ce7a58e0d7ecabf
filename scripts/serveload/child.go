package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// Environment variables of a process that is killed.
const (
	envURL   = "SERVELOAD_URL"
	envToken = "SERVELOAD_TOKEN"
	envFirst = "SERVELOAD_FIRST" // number of its first work
	envSteps = "SERVELOAD_STEPS"
	envSize  = "SERVELOAD_SIZE"
)

// childMain is the main function of a process that is killed, and reports whether this is one. It
// uses all APIs at once until then.
func childMain() bool {
	s := &server{url: os.Getenv(envURL)}
	if s.url == "" {
		return false
	}
	if token := os.Getenv(envToken); token != "" {
		s.tokens = []string{token}
	}
	o := options{clients: 1}
	o.steps, _ = strconv.Atoi(os.Getenv(envSteps))
	o.size, _ = strconv.Atoi(os.Getenv(envSize))
	l := newLoad(o, s)
	first, _ := strconv.ParseUint(os.Getenv(envFirst), 10, 64)
	l.number.Store(first)
	for range 2 * len(apis) {
		go func() {
			for {
				l.clients[0].do(context.Background(), l.work(), nobody)
			}
		}()
	}
	fmt.Println("begun")
	time.Sleep(time.Minute) // if nobody kills it
	return true
}

// kill is the third part.
func (l *load) kill(ctx context.Context) error {
	if l.kills == 0 {
		return nil
	}
	before, err := l.server.metrics(ctx)
	if err != nil {
		return err
	}
	done, end := context.WithCancel(ctx)
	defer end()
	t := &tally{byClient: make([]int, len(l.clients))}
	var wg sync.WaitGroup
	for i, c := range l.clients[:2] { // others, which go on
		wg.Go(func() {
			for done.Err() == nil {
				t.add(i, c.do(ctx, l.work(), nobody), true)
			}
		})
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	var children sync.WaitGroup
	problems := make(chan error, l.kills)
	turns := make(chan struct{}, 4) // so many at once
	for i := range l.kills {
		turns <- struct{}{}
		children.Go(func() {
			defer func() { <-turns }()
			cmd := exec.CommandContext(ctx, program)
			token := l.server.token(2 + i%max(1, len(l.clients)-2))
			cmd.Env = append(os.Environ(), envURL+"="+l.server.url, envToken+"="+token, fmt.Sprint(envFirst, "=", uint64(i+1)<<32),
				fmt.Sprint(envSteps, "=", l.steps), fmt.Sprint(envSize, "=", l.size))
			begun, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				problems <- err
				return
			}
			begun.Read(make([]byte, 1)) // or the end of a process that fails, which is killed as well
			time.Sleep(200*time.Millisecond + time.Duration(rand.Int64N(int64(time.Second))))
			cmd.Process.Kill()
			cmd.Wait() // "signal: killed"
		})
	}
	children.Wait()
	end()
	wg.Wait()
	close(problems)
	for err := range problems {
		return err
	}
	idle := l.server.idle(ctx)
	after, err := l.server.metrics(ctx)
	if err != nil {
		return err
	}
	delta := func(state string) float64 {
		name := `gomflux_jobs_ended_total{state="` + state + `"}`
		return after[name] - before[name]
	}
	l.report.add("kill: processes", float64(l.kills), "")
	l.report.add("kill: jobs that were canceled", delta("canceled"), "")
	l.report.add("kill: works of others", float64(len(t.outcomes)), "")
	l.report.check("jobs of killed clients end", idle == nil, "%v", orNone(idle))
	l.report.check("jobs of killed clients are canceled", delta("canceled") > 0, "%.0f", delta("canceled"))
	l.report.check("no job fails when clients are killed", delta("failed") == 0 && len(t.problems) == 0 && len(t.outcomes) > 0,
		"%.0f failed, %s", delta("failed"), t.problem())
	return nil
}
