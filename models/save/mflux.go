package save

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/filehash"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/index"
)

// mfluxVersion is the version of mflux whose layout is written.
const mfluxVersion = "0.24.0"

// mfluxModel is the content of mflux_model.json.
type mfluxModel struct {
	Format    int              `json:"format_version"`
	Version   string           `json:"mflux_version"`
	Created   string           `json:"created_at"`
	Updated   string           `json:"updated_at"`
	CreatedBy string           `json:"created_by"`
	Name      string           `json:"model_name"`
	Base      *string          `json:"base_model"`
	Quantize  any              `json:"quantize"` // bits, or the name of another mode
	Size      float64          `json:"size_gb"`
	Upstream  *mfluxUpstream   `json:"upstream"`
	Encoders  []string         `json:"text_encoders"`
	LoRAs     []mfluxSavedLoRA `json:"loras"`
}

type mfluxUpstream struct {
	Repo     string  `json:"repo_id"`
	Revision *string `json:"revision"`
}

type mfluxSavedLoRA struct {
	Source string  `json:"source"`
	Scale  float64 `json:"scale"`
	SHA256 string  `json:"sha256,omitempty"`
}

// describe writes mflux_model.json, which mflux-save writes last, to a folder.
func writeMFluxModel(p *plan, dir string) (err error) {
	now := time.Now().UTC().Format("2006-01-02T15:04:05Z")
	about := mfluxModel{
		Format: 1, Version: mfluxVersion, Created: now, Updated: now, CreatedBy: "gomflux",
		Name: p.src.Name, Base: p.src.Base, Size: math.Round(float64(p.total)/1e7) / 100, LoRAs: []mfluxSavedLoRA{},
	}
	if p.src.Revision != "" {
		repo, _, _ := strings.Cut(p.src.Name, ":")
		about.Upstream = &mfluxUpstream{repo, &p.src.Revision}
	} else if p.src.Folder != "" { // without the path, which is private
		about.Name = filepath.Base(p.src.Folder)
	}
	if p.level != "" {
		about.Quantize = p.level
		if bits, err := strconv.Atoi(p.level); err == nil {
			about.Quantize = bits
		}
	}
	if about.Encoders, err = encoders(p); err != nil {
		return err
	}
	for _, spec := range p.o.LoRAs {
		sum := "" // for a folder
		if !disk.IsFolder(spec.Path) {
			if sum, err = filehash.SHA256(context.Background(), spec.Path); err != nil {
				return fmt.Errorf("%s: %w", spec.Path, err)
			}
		}
		about.LoRAs = append(about.LoRAs, mfluxSavedLoRA{filepath.Base(spec.Path), spec.Scale, sum})
	}
	return writeNewJSON(filepath.Join(dir, index.MFluxFile), about)
}

// encoders lists the model types of the text encoders, from their configs.
func encoders(p *plan) ([]string, error) {
	var dirs []string
	for _, c := range p.declared.Components {
		if c.Class.Role == component.TextEncoder {
			dirs = append(dirs, c.Dir)
		}
	}
	slices.Sort(dirs)
	kinds := []string{} // an empty list, not null, in JSON
	for _, dir := range dirs {
		var config struct {
			Type string `json:"model_type"`
		}
		if err := checkpoint.ReadJSON(p.src.FS, path.Join(dir, component.ConfigFile), &config); err != nil {
			return nil, err
		}
		kinds = append(kinds, cmp.Or(config.Type, dir))
	}
	return kinds, nil
}
