package gomflux_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
)

// TestLongPrompts checks that the end of a long prompt is cut off and reported, or that the
// prompt is an error.
func TestLongPrompts(t *testing.T) {
	ctx := context.Background()
	words := strings.Repeat("circle ", 100)
	for _, test := range []struct {
		folder   string
		encoders []string // that do not see all of the prompt
	}{
		{"zimage-ordinary", []string{"text_encoder"}},
		{"flux1-schnell-ordinary", []string{"text_encoder", "text_encoder_2"}}, // CLIP and T5
		{"flux2-klein", []string{"text_encoder"}},
		{"qwen-image-ordinary", []string{"text_encoder"}},
	} {
		t.Run(test.folder, func(t *testing.T) {
			m, err := gomflux.Open(ctx, "models/testdata/"+test.folder+"/model", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			o := gomflux.Options{Prompt: "a red circle", Height: 32, Width: 48, Steps: 1, MaxSequenceLength: 64, RefuseLongPrompts: true}
			short, err := m.Generate(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			if len(short.Cuts) > 0 || short.CutTokens > 0 {
				t.Errorf("%+v is cut off a short prompt", short.Cuts)
			}

			o.Prompt = words
			if _, err := m.Generate(ctx, o); !errors.Is(err, gomflux.ErrRequest) || !strings.Contains(err.Error(), "and the limit is 64") {
				t.Errorf("error %v", err)
			}
			if err := m.Check(o); !errors.Is(err, gomflux.ErrRequest) {
				t.Errorf("Check: error %v", err)
			}

			o.RefuseLongPrompts = false
			r, err := m.Generate(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			var encoders []string
			for _, c := range r.Cuts {
				encoders = append(encoders, c.Encoder)
				if c.Prompt != "prompt" || c.Tokens <= 0 || c.Limit <= 0 || c.Text == "" ||
					!strings.HasSuffix(strings.TrimSpace(words), strings.TrimSpace(c.Text)) {
					t.Errorf("%+v", c)
				}
			}
			slices.Sort(encoders)
			if !slices.Equal(encoders, test.encoders) {
				t.Errorf("%q do not see all of the prompt, expected %q", encoders, test.encoders)
			}
		})
	}
}

// TestLongPromptOfCLIP: what only CLIP is not shown is no error, since T5 sees it.
func TestLongPromptOfCLIP(t *testing.T) {
	m, err := gomflux.Open(context.Background(), "models/testdata/flux1-schnell-ordinary/model", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	o := gomflux.Options{Prompt: strings.Repeat("circle ", 30), Height: 32, Width: 48, Steps: 1, RefuseLongPrompts: true}
	var told []gomflux.Cut
	o.OnCut = func(c gomflux.Cut) { told = append(told, c) }
	r, err := m.Generate(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(told, r.Cuts) {
		t.Errorf("OnCut was told %+v, expected %+v", told, r.Cuts)
	}
	if len(r.Cuts) != 1 || r.Cuts[0].Encoder != "text_encoder" || r.Cuts[0].Tokens != r.CutTokens || r.CutTokens == 0 {
		t.Errorf("%+v, %d tokens", r.Cuts, r.CutTokens)
	}
}
