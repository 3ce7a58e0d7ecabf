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

// Checkpoint is all tensors of one component folder, in one file or in shards
// with an index. Its files stay open until Close.
type Checkpoint struct {
	// Dir is the folder's name for messages.
	Dir   string
	Files []*File
	// Tensors holds every tensor of Files; Tensor.File says which of them.
	Tensors map[string]Tensor
}

// OpenCheckpoint opens and validates the safetensors files of the folder dir of
// fsys ("." for fsys itself). It takes, under the names that diffusers
// (diffusion_pytorch_model) and transformers (model) give, an index with its
// shards or else a single file; if there is none, any other index, or else any
// other single file or variant (model.fp16.safetensors), but only if there is
// exactly one: it does not guess.
//
// With an index, the tensors of the shards must be those of the index, each in
// the shard that it names.
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
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the files; see File.Close for arrays that are still to be evaluated.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.Files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

const suffix = ".safetensors"

var (
	// stems are the names that diffusers and transformers save under.
	stems = []string{"diffusion_pytorch_model", "model"}

	shardName = regexp.MustCompile(`-\d+-of-\d+\.safetensors$`)
	// Variants of an index are model.safetensors.index.fp16.json.
	variantIndex = regexp.MustCompile(`\.safetensors\.index\..+\.json$`)
	pickle       = regexp.MustCompile(`(?i)\.(bin|pt|pth|ckpt|pkl)$`)
	// Formats that hold weights but are not read.
	otherFormats = regexp.MustCompile(`(?i)\.(bin|pt|pth|ckpt|gguf|msgpack|h5|onnx)$`)
)

// choose picks the index or the single file to read among the names in a folder.
func choose(names []string) (string, error) {
	var found []string
	for _, stem := range stems {
		for _, name := range []string{stem + suffix + ".index.json", stem + suffix} {
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
		case strings.HasPrefix(name, "."): // the system's: ._model.safetensors
		case strings.HasSuffix(name, suffix+".index.json"):
			indexes = append(indexes, name)
		case variantIndex.MatchString(name):
			variants = append(variants, name)
		case shardName.MatchString(name):
			shards = true
		case strings.HasSuffix(name, suffix):
			singles = append(singles, name)
		case otherFormats.MatchString(name):
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
		return "", fmt.Errorf("found %s: expected one checkpoint, keep one and move the others away", list(found, len(found)))
	case shards:
		return "", fmt.Errorf("found shards but not their index (%s or %s), is the download complete?", stems[0]+suffix+".index.json", stems[1]+suffix+".index.json")
	case len(others) > 0:
		return "", fmt.Errorf("found no safetensors file, only %s: pickle and GGUF files are not read; %s", list(others, 10), convert)
	case len(names) == 0:
		return "", errors.New("found no safetensors file, the folder is empty (is the download complete?)")
	}
	return "", fmt.Errorf("found no safetensors file (expected %s or %s), only %s (is the download complete?)", stems[0]+suffix, stems[1]+suffix, list(names, 10))
}

// IsPickle reports whether a file's name is that of a pickle, which can run any code
// when it is read.
func IsPickle(name string) bool { return pickle.MatchString(name) }

// list joins names for a message, at most that many of them.
func list(names []string, most int) string {
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// openShards opens the shards that an index names.
func (c *Checkpoint) openShards(fsys fs.FS, dir, indexName string) error {
	indexFull := FullName(fsys, path.Join(dir, indexName))
	data, err := readSmall(fsys, path.Join(dir, indexName), maxHeader)
	if err != nil {
		return fmt.Errorf("%s: %w", indexFull, err)
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

	// All missing files at once: each may be a download of hours.
	var missing []string
	for _, shard := range shards {
		if _, err := fs.Stat(fsys, path.Join(dir, shard)); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, shard)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s: %d of %d shards are missing (is the download complete?): %s", indexFull, len(missing), len(shards), list(missing, len(missing)))
	}

	var stray []string
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
				stray = append(stray, fmt.Sprintf("%s is in %s but not in the index", quote.Text(name), shard))
			case want != shard:
				stray = append(stray, fmt.Sprintf("%s is in %s, the index says %s", quote.Text(name), shard, want))
			}
			c.Tensors[name] = f.Header.Tensors[name]
		}
	}
	for name, shard := range index {
		if _, ok := c.Tensors[name]; !ok {
			stray = append(stray, fmt.Sprintf("%s is not in %s", quote.Text(name), shard))
		}
	}
	if len(stray) > 0 {
		slices.Sort(stray)
		return fmt.Errorf("%s: the index and the shards do not agree: %s", indexFull, list(stray, 10))
	}
	return nil
}

// parseIndex reads the weight_map of an index, tensor to shard. What else the
// index says, total_size for one, is checked as JSON and not used.
func parseIndex(data []byte) (map[string]string, error) {
	s, err := newScanner(data)
	if err != nil {
		return nil, atLine(data, err)
	}
	var index map[string]string
	seen := make(map[string]bool)
	err = s.object(func(key string, offset int) error {
		if seen[key] {
			return duplicate(key, offset)
		}
		seen[key] = true
		if key != "weight_map" {
			return s.skip()
		}
		index = make(map[string]string)
		return s.object(func(tensor string, offset int) error {
			if _, dup := index[tensor]; dup {
				return duplicate(tensor, offset)
			}
			s.peek()
			at := s.pos
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
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, atLine(data, err)
	}
	if len(index) == 0 {
		return nil, errors.New("expected tensors under weight_map, found none")
	}
	return index, nil
}

// checkShard refuses a name that is not that of a file beside the index.
func checkShard(name string) error {
	if strings.ContainsAny(name, "/\\\x00") || name == suffix || !strings.HasSuffix(name, suffix) {
		return fmt.Errorf("shard name %s is not that of a %s file in the same folder", quote.Text(name), suffix)
	}
	return nil
}
