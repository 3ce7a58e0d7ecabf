package models

import (
	"context"
	"fmt"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
)

// macPromptTokens is the length of the prompt in estimates for Macs.
const macPromptTokens = 128

// A macModel is a published model with what fits Macs.
type macModel struct {
	Name string          `json:"name"`
	Macs []models.MacFit `json:"macs"`
}

// macModels is what models --mac prints.
type macModels []macModel

// fitMacs estimates all published models on Macs with so much memory, in GiB.
func fitMacs(ctx context.Context, gib []int) (list macModels, err error) {
	for _, n := range gib {
		if n < 4 || n > 1024 {
			return nil, cli.UsageErrorf("a Mac with %d GB of memory: must be from 4 to 1024", n)
		}
	}
	if _, err := mlx.Open(); err != nil {
		return nil, cli.Coded(cli.ExitLibrary, err)
	}
	err = mlx.Do(ctx, func() error {
		for _, p := range catalog.Presets {
			s, err := catalog.PublishedConfigs(&p)
			if err != nil {
				return err
			}
			fits, err := models.FitMacs(s.FS, models.LoadOptions{Defaults: s.Defaults}, macPromptTokens, gib...)
			if err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
			list = append(list, macModel{p.Name, fits})
			mlx.StopPoint()
		}
		return nil
	})
	return list, err
}

func (list macModels) Text(p *ui.Page) {
	var table ui.Table
	for i, m := range list {
		head, row := []string{""}, []string{m.Name}
		for _, fit := range m.Macs {
			head, row = append(head, fmt.Sprintf("%d GB", fit.GiB)), append(row, macCell(fit))
		}
		if i == 0 {
			table.Row(head...)
		}
		table.Row(row...)
	}
	p.Table(table)
}

// macCell returns the flags with which a model fits, and its peak in GB.
func macCell(fit models.MacFit) string {
	text := fmt.Sprintf("%.1f", float64(fit.Peak)/1e9)
	if fit.LowRAM {
		text += "*"
	}
	if !fit.Fits {
		return text + " does not fit"
	}
	if fit.Quantize != "" {
		text += " -q " + fit.Quantize
	}
	if fit.Smaller {
		text += fmt.Sprintf(" %dx%d", fit.Width, fit.Height)
	}
	return text
}
