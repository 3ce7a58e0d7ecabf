package serve

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/native"
)

// A Backend is the engine as the APIs see it: it refuses requests that are too large or that name
// files of this machine.
type Backend struct {
	api.Adapted
	s   *Server
	own *native.API // keeps the images of jobs in the gallery, unless it is nil
}

// Submit checks a request, and hands it to the engine.
func (b *Backend) Submit(ctx context.Context, r engine.Request) (api.Job, error) {
	if err := b.s.checkRequest(&r); err != nil {
		return nil, err
	}
	j, err := b.Adapted.Submit(ctx, r)
	if err == nil {
		log := b.s.Log.With("job", j.ID(), "client", r.Client, "model", j.Status().Model, "images", len(r.Seeds))
		if b.s.LogPrompts {
			log = log.With("prompt", r.Options.Prompt, "negative_prompt", r.Options.NegativePrompt)
		}
		log.Info("job")
	}
	if err == nil && b.own != nil && r.Upscale == nil {
		b.own.Keep(j, r.Client)
	}
	return j, err
}

// checkRequest refuses what exceeds the limits, and LoRAs that are files.
func (s *Server) checkRequest(r *engine.Request) error {
	if r.Upscale != nil {
		return nil // its image is checked when its size is known
	}
	info, err := s.Engine.Model(r.Model, r.Messages != nil)
	if err != nil {
		return err
	}
	if err := api.CheckLimits(r, info, s.MaxPixels, s.MaxSteps); err != nil {
		return err
	}
	for _, l := range r.LoRAs {
		if err := checkLoRA(l.Path); err != nil {
			return err
		}
	}
	return nil
}

// checkLoRA refuses names of LoRAs that are paths. Those of the Hugging Face cache and of
// LORA_LIBRARY_PATH are not.
func checkLoRA(name string) error {
	repo, file, _ := strings.Cut(name, ":")
	valid := fs.ValidPath(repo) && strings.Count(repo, "/") <= 1 && (file == "" || fs.ValidPath(file)) && path.Clean(name) == name
	if !valid || strings.ContainsAny(name, "\\\x00") || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "~") {
		return errs.Request(fmt.Errorf("LoRA %.200q: expected owner/name[@revision][:file] of the Hugging Face cache", name))
	}
	if _, err := os.Lstat(name); err == nil {
		return errs.Request(fmt.Errorf("LoRA %.200q: expected owner/name[@revision][:file] of the Hugging Face cache, found a path", name))
	}
	return nil
}
