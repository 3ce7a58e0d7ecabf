package component_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/upscaler"
)

// writeUpscaler writes a network's tensors, all zeros, under names that rename returns, and opens the file.
func writeUpscaler(t *testing.T, n upscaler.Network, rename func(string) string) *checkpoint.Checkpoint {
	t.Helper()
	var list []*checkpoint.Array
	for _, p := range nn.Parameters(n) {
		size := 2
		for _, axis := range p.Stored() {
			size *= axis
		}
		a, err := checkpoint.NewArray(rename(p.Name), checkpoint.F16, p.Stored(), make([]byte, size))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, a)
	}
	dir := t.TempDir()
	if err := checkpoint.WriteFile(filepath.Join(dir, "x.safetensors"), list, nil); err != nil {
		t.Fatal(err)
	}
	f, err := checkpoint.Open(checkpoint.Folder{FS: os.DirFS(dir), Name: dir}, "x.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.NewCheckpoint(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	return ck
}

var denseName = regexp.MustCompile(`^body\.(\d+)\.rdb(\d)\.conv(\d)`)

// esrgan returns the names that ESRGAN's makers gave the tensors first, for a size that is doubled so often.
func esrgan(ups int, blocks string) func(string) string {
	number := map[int]string{0: "0", 1: "3", 2: "6", 3: "9"}
	hr, last := map[int]string{0: "2", 1: "5", 2: "8", 3: "11"}[ups], map[int]string{0: "4", 1: "7", 2: "10", 3: "13"}[ups]
	return func(name string) string {
		name = denseName.ReplaceAllString(name, "model.1.sub.$1.RDB$2.conv$3.0")
		return strings.NewReplacer("conv_first", "model.0", "conv_body", "model.1.sub."+blocks,
			"conv_up1", "model."+number[1], "conv_up2", "model."+number[2], "conv_up3", "model."+number[3],
			"conv_hr", "model."+hr, "conv_last", "model."+last).Replace(name)
	}
}

// TestUpscalers checks that the networks are recognised under all names that files have, and that their configs follow
// from the shapes.
func TestUpscalers(t *testing.T) {
	same := func(name string) string { return name }
	bsrgan := func(name string) string {
		name = denseName.ReplaceAllString(name, "RRDB_trunk.$1.RDB$2.conv$3")
		return strings.NewReplacer("conv_body", "trunk_conv", "conv_up", "upconv", "conv_hr", "HRconv").Replace(name)
	}
	prefixed := func(prefix string, rename func(string) string) func(string) string {
		return func(name string) string { return prefix + rename(name) }
	}
	rrdb := func(change func(c *upscaler.RRDBConfig)) upscaler.RRDBConfig {
		c := upscaler.DefaultRRDBConfig()
		c.NumFeat, c.NumGrowCh, c.NumBlock = 8, 4, 2
		change(&c)
		return c
	}
	for name, c := range map[string]struct {
		config any
		rename func(string) string
	}{
		"x4":          {rrdb(func(*upscaler.RRDBConfig) {}), same},
		"x4, old":     {rrdb(func(*upscaler.RRDBConfig) {}), esrgan(2, "2")},
		"x4, BSRGAN":  {rrdb(func(*upscaler.RRDBConfig) {}), bsrgan},
		"x4, ema":     {rrdb(func(*upscaler.RRDBConfig) {}), prefixed("params_ema.", same)},
		"x4, net":     {rrdb(func(*upscaler.RRDBConfig) {}), prefixed("netG.", esrgan(2, "2"))},
		"x2":          {rrdb(func(c *upscaler.RRDBConfig) { c.Shuffle = 2 }), same},
		"x2, old":     {rrdb(func(c *upscaler.RRDBConfig) { c.NumUp = 1 }), esrgan(1, "2")},
		"x1":          {rrdb(func(c *upscaler.RRDBConfig) { c.Shuffle = 4 }), prefixed("params.", same)},
		"x1, old":     {rrdb(func(c *upscaler.RRDBConfig) { c.NumUp = 0 }), esrgan(0, "2")},
		"x8, old":     {rrdb(func(c *upscaler.RRDBConfig) { c.NumUp = 3 }), esrgan(3, "2")},
		"alpha":       {rrdb(func(c *upscaler.RRDBConfig) { c.NumInCh, c.NumOutCh = 4, 4 }), esrgan(2, "2")},
		"compact":     {upscaler.CompactConfig{NumInCh: 3, NumOutCh: 3, NumFeat: 6, NumConv: 3, Upscale: 4}, same},
		"compact, x1": {upscaler.CompactConfig{NumInCh: 1, NumOutCh: 1, NumFeat: 6, NumConv: 0, Upscale: 1}, prefixed("params.", same)},
	} {
		t.Run(name, func(t *testing.T) {
			var n upscaler.Network
			class := component.RRDBNet
			switch config := c.config.(type) {
			case upscaler.RRDBConfig:
				n = upscaler.NewRRDBNet(config)
			case upscaler.CompactConfig:
				n, class = upscaler.NewCompact(config), component.SRVGGNetCompact
			}
			ck := writeUpscaler(t, n, c.rename)
			found, err := component.Detect(ck, "")
			if err != nil || len(found) != 1 || found[0].Class != class {
				t.Fatalf("found %v, %v", found, err)
			}
			inferred, err := found[0].Infer(ck)
			if err != nil {
				t.Fatal(err)
			}
			inferred.Inferred["_class_name"] = class.Name
			text, err := json.Marshal(inferred.Inferred)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(filepath.Dir(ck.Files[0].Name), "config.json"), text, 0o666); err != nil {
				t.Fatal(err)
			}
			folder := checkpoint.Folder{FS: os.DirFS(filepath.Dir(ck.Files[0].Name)), Name: "folder"}
			made, own, err := component.DeclareUpscaler(&component.Folder{FS: folder, Points: &hooks.Points{}}, ".")
			if err != nil {
				t.Fatal(err)
			}
			view, err := own.Open(folder)
			if err != nil {
				t.Fatal(err)
			}
			defer view.Close()
			channels := made.(upscaler.Network).Channels()
			if _, mismatch := own.Match(view); mismatch != nil || made.Scale() != n.Scale() || channels != n.Channels() {
				t.Errorf("inferred %s for %+v: %v", text, c.config, mismatch)
			}
		})
	}
}
