package rank

import (
	"bufio"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux"
)

func TestLifeLine(t *testing.T) {
	Done(1) // without a launcher nothing is written
	alone := strings.NewReader("as it is")
	if stdin := Start(alone, nil, nil); stdin != alone {
		t.Error("without a launcher standard input changes")
	}

	t.Setenv(Env, "1")
	stdin, launcher := io.Pipe()
	beats, stderr := io.Pipe()
	ended := make(chan bool)
	go io.WriteString(launcher, "\"a \\\"prompt\\\"\\n\"\n\n\n")
	input := Start(stdin, stderr, func() { ended <- true })
	if _, set := os.LookupEnv(Env); set {
		t.Error("processes that this one starts would have a launcher")
	}
	lines := bufio.NewScanner(beats)
	waitFor := func(want string) { // there is another beat every two seconds
		for lines.Scan() && lines.Text() != Marker+want {
		}
	}
	go Done(7)
	waitFor(`{"done":[7]}`)
	go func() {
		Report(gomflux.Progress{Phase: gomflux.PhaseLoad, Component: "vae", TotalBytes: 9})
		Report(gomflux.Progress{Phase: gomflux.PhaseStep, Steps: 2})
		Resumable(true)
		Report(gomflux.Progress{Phase: gomflux.PhaseStep, Step: 1, Steps: 2})
		line.next.Longest = 7
		Resumable(true)
		Report(gomflux.Progress{Phase: gomflux.PhaseStep, Step: 2, Steps: 2})
		Resumable(true)
		Report(gomflux.Progress{Phase: gomflux.PhaseStep, Steps: 4})
		Resumable(true)
	}()
	waitFor(`{"resumable":true,"progress":"step 0/2","step":1}`)
	waitFor(`{"resumable":true,"progress":"step 1/2","step":2,"longest":7}`)
	waitFor(`{"resumable":true,"progress":"step 2/2","longest":7}`)
	waitFor(`{"resumable":true,"progress":"step 0/4","step":3,"longest":7}`)
	go io.Copy(io.Discard, beats)

	if text, err := io.ReadAll(input); err != nil || string(text) != "a \"prompt\"\n" {
		t.Errorf("input %q, %v", text, err)
	}
	select {
	case <-ended:
		t.Error("it has ended while there is a launcher")
	case <-time.After(100 * time.Millisecond):
	}
	launcher.Close()
	<-ended
}

func TestBefore(t *testing.T) {
	for text, want := range map[string][]int{"": nil, "null": nil, "[]": {}, "[3]": {3}, "[0,12]": {0, 12}} {
		t.Setenv(EnvDone, text)
		if got := Before(); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, expected %v", text, got, want)
		}
	}
}
