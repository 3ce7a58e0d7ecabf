package generate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/textfile"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/picture"
)

// maxPrompt limits the length of a prompt, in bytes. No model takes as much.
const maxPrompt = 1 << 20

// readPrompts reads the prompts from flags, files and standard input. LoRAs in them are added to those of
// --lora.
func (o *generateOptions) readPrompts(ctx context.Context, stdin io.Reader) (prompts []string, err error) {
	var tags []picture.LoRA
	add := func(prompt, from string, err error) error {
		if err == nil {
			err = checkText(prompt)
		}
		if err == nil && !o.noLoRATags {
			before := tags
			if prompt, tags, err = picture.CutLoRAs(prompt); err == nil && len(prompts) > 0 && !slices.Equal(tags, before) {
				err = errors.New("has other LoRAs than the prompt before it, and all images of a run have the same")
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		prompts = append(prompts, prompt)
		return nil
	}
	for _, name := range o.promptFiles {
		prompt, err := readTextFile(ctx, name)
		if err := add(prompt, "prompt file "+name, err); err != nil {
			return nil, err
		}
	}
	for _, prompt := range o.prompts {
		from := "prompt"
		var err error
		if prompt == "-" {
			from = "prompt on standard input"
			prompt, err = readText(ctx, stdin)
		}
		if err := add(prompt, from, err); err != nil {
			return nil, err
		}
	}
	return prompts, o.addTags(tags)
}

// addTags adds the LoRAs of prompts.
func (o *generateOptions) addTags(tags []picture.LoRA) error {
	for _, tag := range tags {
		name := catalog.NamedLoRA(tag)
		if _, err := catalog.FindLoRA(name); err != nil {
			const hint = `\<lora:%s> and --no-lora-tags leave it as text`
			return cli.Coded(cli.ExitModel, fmt.Errorf("prompt: <lora:%s>: %w; "+hint, tag.Path, err, tag.Path))
		}
		o.LoRAs.List = append(o.LoRAs.List, gomflux.LoRA{Path: name, Scale: tag.Scale})
	}
	return nil
}

func readTextFile(ctx context.Context, name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", oserr.Bare(err)
	}
	defer f.Close()
	return readText(ctx, f)
}

// readText reads all of r, as [textfile.Decode] does, without the final line end that editors and
// echo add. A read cannot be interrupted, so it goes on in the background when ctx is done.
func readText(ctx context.Context, r io.Reader) (string, error) {
	var data []byte
	done := make(chan error, 1)
	go func() {
		var err error
		data, err = io.ReadAll(io.LimitReader(r, maxPrompt+1))
		done <- err
	}()
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case err := <-done:
		if err != nil {
			return "", oserr.Bare(err)
		}
	}
	if len(data) > maxPrompt {
		return "", fmt.Errorf("is longer than %s", units.Bytes(maxPrompt))
	}
	data, err := textfile.Decode(data)
	return strings.TrimSuffix(string(data), "\n"), err
}

func checkText(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("is not valid UTF-8")
	}
	if strings.ContainsRune(s, 0) {
		return errors.New("contains a NUL character")
	}
	return nil
}

// A promptCut is a cut of a prompt, or with "" of the negative prompt, which all
// images share.
type promptCut struct {
	prompt string
	gomflux.Cut
}

// warnCut warns of the text that is cut off a prompt, once for all of its images.
func (g *generation) warnCut(c gomflux.Cut, options gomflux.Options) {
	key := promptCut{Cut: c}
	if c.Prompt == "prompt" {
		key.prompt = options.Prompt
	}
	if g.cuts[key] {
		return
	}
	g.cuts[key] = true
	lost := "the end of the model's template"
	if words := strings.Fields(c.Text); len(words) > 0 {
		lost = strconv.Quote(cli.Shortened(strings.Join(words, " "), 101))
	}
	hint := ""
	if c.Limit == g.model.Settings(options).MaxSequenceLength {
		hint = " (shorten it, or raise --max-sequence-length)"
	}
	g.out.Warn("the %s is %s too long for %s, which takes %d; lost: %s%s",
		c.Prompt, ui.Plural(c.Tokens, "token"), c.Encoder, c.Limit, lost, hint)
}
