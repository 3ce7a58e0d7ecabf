package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
)

// listUpscalers returns the published networks that enlarge images.
func listUpscalers(cached []hub.Repo) (list []ListedModel) {
	for _, p := range catalog.Upscalers {
		m := ListedModel{Name: p.Name, Class: p.Class, About: enlarges(p.Class, p.Scale), Supported: true}
		s, err := catalog.FindUpscaler(p.Name)
		switch {
		case err == nil:
			m.upscaler(s)
		case !errors.Is(err, errs.ErrNotFound):
			m.Here, m.Problems = true, []string{err.Error()}
		}
		if s == nil || s.Revision != "" {
			m.Repo, m.Licence = p.Repo, p.Licence
			if i := slices.IndexFunc(cached, func(r hub.Repo) bool { return r.Name == p.Repo }); i >= 0 {
				m.Unfinished = cached[i].Unfinished
			}
			if !m.Complete {
				m.Get = "gomflux pull " + p.Name
			}
		}
		list = append(list, m)
	}
	return list
}

func enlarges(class string, scale int) string {
	if class == component.NaDiT.Name {
		return fmt.Sprintf("enlarges images up to %d times, with new details (gomflux upscale)", scale)
	}
	return fmt.Sprintf("enlarges images %d times (gomflux upscale)", scale)
}

// FoundUpscaler describes a network that enlarges images, nil if the name is that of something else.
func FoundUpscaler(name string) *ListedModel {
	s := catalog.OnlyUpscaler(name)
	if s == nil {
		return nil
	}
	m := &ListedModel{Name: name, Supported: true}
	if p := catalog.PublishedUpscaler(name); p != nil && s.Revision != "" {
		m.Repo, m.Licence = p.Repo, p.Licence
	}
	m.upscaler(s)
	return m
}

// upscaler fills in what the headers of a network say.
func (m *ListedModel) upscaler(s *catalog.Source) {
	m.Here, m.Path, m.Revision = true, s.Folder, s.Revision
	n, c, err := component.DeclareUpscaler(&component.Folder{FS: s.FS, Points: &hooks.Points{}}, component.Upscalers)
	if err != nil {
		m.Supported, m.Problems = false, append(m.Problems, err.Error())
		return
	}
	m.Class, m.About = c.Class.Name, enlarges(c.Class.Name, n.Scale())
	ck, err := c.Open(s.FS)
	if err != nil {
		m.Problems = append(m.Problems, err.Error())
		return
	}
	defer ck.Close()
	for _, t := range ck.Tensors {
		m.Bytes += t.Bytes()
	}
	if _, mismatch := c.Match(ck); mismatch != nil {
		m.Problems = append(m.Problems, mismatch.Error())
		return
	}
	m.Complete = true
}
