package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/quote"
)

// Checkpoint contains the tensors of a component's folder, from one file or from
// shards with an index. Its files stay open until Close.
type Checkpoint struct {
	// Dir is the folder's name for messages.
	Dir   string
	Files []*File
	// Tensors has the tensors of all files by name. Tensor.File names the file.
	Tensors map[string]Tensor
	// Inferred reports that the component's config was inferred from the tensors.
	Inferred bool
}

const configName = "config.json"

// OpenCheckpoint opens and validates the safetensors files of the folder dir of
// fsys ("." for fsys itself). It looks for files in this order:
//
//   - an index or a single file with the standard name of diffusers
//     (diffusion_pytorch_model) or transformers (model), the index first;
//   - any other index;
//   - any other single file or variant (model.fp16.safetensors).
//
// It is an error if it finds more than one of a kind.
//
// With an index, the shards must have exactly the tensors of the index, each in
// the shard that the index names.
func OpenCheckpoint(fsys fs.FS, dir string) (*Checkpoint, error) {
	full := FullName(fsys, dir)
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("model folder %s: %w", full, oserr.Bare(err))
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	name, err := choose(names)
	if err != nil {
		return nil, fmt.Errorf("model folder %s: %w", full, err)
	}
	c := &Checkpoint{Dir: full, Tensors: make(map[string]Tensor)}
	if strings.HasSuffix(name, ".json") {
		err = c.openShards(fsys, dir, name)
	} else {
		var f *File
		if f, err = Open(fsys, path.Join(dir, name)); err == nil {
			c.Files, c.Tensors = []*File{f}, f.Header.Tensors
		}
	}
	if err == nil {
		err = c.unpack(func() string {
			config, _ := ReadFile(fsys, path.Join(dir, configName), maxConfig)
			method, _ := QuantizationMethod(config)
			return method
		})
	}
	if generated, ok := fsys.(interface{ Generated(string) bool }); ok {
		c.Inferred = generated.Generated(path.Join(dir, configName))
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the files. See File.Close about arrays that MLX has not yet
// evaluated.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.Files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

const suffix = ".safetensors"

var (
	// stems are the standard names of diffusers and transformers.
	stems = []string{"diffusion_pytorch_model", "model"}

	shardName = regexp.MustCompile(`-\d+-of-\d+\.safetensors$`)
	// A variant of an index is named model.safetensors.index.fp16.json.
	variantIndex = regexp.MustCompile(`\.safetensors\.index\..+\.json$`)
)

// choose returns the index or the single file to read from a folder with these
// names.
func choose(names []string) (string, error) {
	const indexSuffix = suffix + ".index.json"
	var found []string
	for _, stem := range stems {
		for _, name := range []string{stem + indexSuffix, stem + suffix} {
			if slices.Contains(names, name) {
				found = append(found, name)
				break
			}
		}
	}
	shards := false
	var indexes, singles, variants, others []string
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "."): // such as ._model.safetensors of macOS
		case strings.HasSuffix(name, indexSuffix):
			indexes = append(indexes, name)
		case variantIndex.MatchString(name):
			variants = append(variants, name)
		case shardName.MatchString(name):
			shards = true
		case strings.HasSuffix(name, suffix):
			singles = append(singles, name)
		case FormatNamed(name) != nil:
			others = append(others, name)
		}
	}
	if len(found) == 0 {
		found = indexes
	}
	if len(found) == 0 {
		found = append(variants, singles...)
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", fmt.Errorf("expected one checkpoint, found %s (keep one and move the others away)", quote.List(found, len(found)))
	case shards:
		return "", fmt.Errorf("found shards but not their index, %s or %s (is the download complete?)",
			stems[0]+indexSuffix, stems[1]+indexSuffix)
	case len(others) > 0:
		return "", fmt.Errorf("no safetensors file, only %s: %v", quote.List(others, 10), FormatNamed(others[0]))
	case len(names) == 0:
		return "", errors.New("no safetensors file, the folder is empty (is the download complete?)")
	}
	return "", fmt.Errorf("no safetensors file (expected %s or %s), only %s (is the download complete?)",
		stems[0]+suffix, stems[1]+suffix, quote.List(names, 10))
}

// openShards opens the shards of an index and compares them with it.
func (c *Checkpoint) openShards(fsys fs.FS, dir, indexName string) error {
	indexFull := FullName(fsys, path.Join(dir, indexName))
	data, err := ReadFile(fsys, path.Join(dir, indexName), maxHeader)
	if err != nil {
		return err
	}
	index, err := parseIndex(data)
	if err != nil {
		return fmt.Errorf("%s: %w", indexFull, err)
	}
	var shards []string
	for _, shard := range index {
		shards = append(shards, shard)
	}
	slices.Sort(shards)
	shards = slices.Compact(shards)

	// Report all missing files at once: each may take hours to download.
	var missing []string
	for _, shard := range shards {
		if _, err := fs.Stat(fsys, path.Join(dir, shard)); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, shard)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s: %d of %d shards are missing (is the download complete?): %s",
			indexFull, len(missing), len(shards), quote.List(missing, len(missing)))
	}

	var mismatches []string
	for _, shard := range shards {
		f, err := Open(fsys, path.Join(dir, shard))
		if err != nil {
			return err
		}
		c.Files = append(c.Files, f)
		for _, name := range f.Header.Names {
			if t, dup := c.Tensors[name]; dup {
				return fmt.Errorf("tensor %s is in two shards: %s and %s", quote.Text(name), t.File, f.Name)
			}
			want, ok := index[name]
			switch {
			case !ok:
				mismatches = append(mismatches, fmt.Sprintf("%s is in %s but not in the index", quote.Text(name), shard))
			case want != shard:
				mismatches = append(mismatches, fmt.Sprintf("%s is in %s, the index has %s", quote.Text(name), shard, want))
			}
			c.Tensors[name] = f.Header.Tensors[name]
		}
	}
	for name, shard := range index {
		if _, ok := c.Tensors[name]; !ok {
			mismatches = append(mismatches, fmt.Sprintf("%s is not in %s", quote.Text(name), shard))
		}
	}
	if len(mismatches) > 0 {
		slices.Sort(mismatches)
		return fmt.Errorf("%s: the index does not match the shards: %s", indexFull, quote.List(mismatches, 10))
	}
	return nil
}

// parseIndex returns the weight_map of an index, from tensors to shards. Other
// keys, such as total_size, must be valid JSON and are ignored.
func parseIndex(data []byte) (map[string]string, error) {
	s, err := newScanner(data)
	if err != nil {
		return nil, atLine(data, err)
	}
	var index map[string]string
	err = s.object(func(key string, _ int) error {
		if key != "weight_map" {
			return s.skip()
		}
		index = make(map[string]string)
		return s.object(func(tensor string, _ int) error {
			at := s.at()
			shard, err := s.str()
			if err != nil {
				return err
			}
			if err := checkShard(shard); err != nil {
				return failf(at, "tensor %s: %w", quote.Text(tensor), err)
			}
			index[tensor] = shard
			return nil
		})
	})
	if err != nil {
		return nil, atLine(data, err)
	}
	if len(index) == 0 {
		return nil, errors.New("weight_map is missing or empty")
	}
	return index, nil
}

// checkShard rejects names other than those of files in the folder of the index.
func checkShard(name string) error {
	if strings.ContainsAny(name, "/\\\x00") || name == suffix || !strings.HasSuffix(name, suffix) {
		return fmt.Errorf("shard name %s: must be the name of a %s file in the same folder", quote.Text(name), suffix)
	}
	return nil
}
