package models

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/models/promptcache"
	"github.com/gomflux/gomflux/models/tuning"
)

// A diskCache keeps the prompt embeddings of a pipeline on disk.
type diskCache struct {
	*promptcache.Cache
	machine machineKey
	folders map[string]string   // the files in the folders of the model, by folder
	configs string              // the files that declare the pipeline
	loras   map[string][]string // those that change a text encoder, by its folder
}

// A machineKey has everything outside of a model that the output of a text encoder depends on.
type machineKey struct {
	Program      string   // the version and the file of the running program
	Libraries    []string // the files of MLX and the BLAS
	MLX          string   // its version
	Environment  []string // variables that the libraries read
	Device       string
	Architecture string
	Processor    string
	CPUs         int
}

// An embeddingsKey has everything that the output of a text encoder depends on.
type embeddingsKey struct {
	Machine      machineKey
	Operations   []string // of gomflux in place of MLX's, such as custom kernels
	Tuning       string   // settings of a tuned profile
	Class        string   // of the pipeline
	Configs      string   // the files that declare it
	Encoder      string   // folder of the text encoder
	Output       string   // name of its output
	Files        []string // the files of text encoder, tokenizer and image processor
	Dtype        string
	Quantize     *mlx.Quantization
	LoRAs        []string // those that change the text encoder, in their order
	RuntimeLoRA  bool
	Prompt       string
	PrefixTokens int
	Limit        int      // of the tokens
	Images       []string // hashes of the images that the text encoder sees
}

// openDiskCache sets up the cache of prompt embeddings. It identifies the model's files before any
// weight is read, so a file that is replaced meanwhile is not taken for the new one. If something
// cannot be identified, the pipeline has no cache.
func (p *Pipeline) openDiskCache(cache *promptcache.Cache) {
	if cache == nil || p.random != nil {
		return
	}
	c := &diskCache{Cache: cache, folders: map[string]string{}, loras: map[string][]string{}}
	var err error
	if c.machine, err = p.machineKey(); err != nil {
		return
	}
	names := []string{index.Name(p.loader.FS)}
	for _, part := range p.declared.Components {
		names = append(names, path.Join(part.Dir, component.ConfigFile))
	}
	if c.configs, err = filesKey(p.loader.FS, names); err != nil {
		return
	}
	for _, t := range p.family.PromptEncodings(nil) {
		for _, dir := range folders(&t) {
			if c.folders[dir], err = folderKey(p.loader.FS, dir); err != nil {
				return
			}
		}
		for _, l := range p.LoRAs() {
			if l.Modules[t.Encoder] == 0 {
				continue
			}
			key, err := folderKey(os.DirFS(filepath.Dir(l.Path)), ".") // with the config of an adapter
			if err != nil {
				return
			}
			c.loras[t.Encoder] = append(c.loras[t.Encoder], fmt.Sprint(filepath.Base(l.Path), " ", l.Scale, " ", key))
		}
	}
	p.disk = c
}

// machineKey describes the program, its libraries and the device.
func (p *Pipeline) machineKey() (k machineKey, err error) {
	program, err := os.Executable()
	if err != nil {
		return k, err
	}
	if k.Program, err = filesKey(os.DirFS(filepath.Dir(program)), []string{filepath.Base(program)}); err != nil {
		return k, err
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		k.Program += info.String()
	}
	lib, err := mlx.Open()
	if err != nil {
		return k, err
	}
	for _, name := range []string{lib.MLXC, lib.MLX, lib.BLAS} {
		key, err := filesKey(os.DirFS(filepath.Dir(name)), []string{filepath.Base(name)})
		if err != nil {
			key = name // found by the system's loader
		}
		k.Libraries = append(k.Libraries, key)
	}
	for _, variable := range os.Environ() {
		for _, prefix := range []string{"MLX_", mlx.EnvKernels, "OPENBLAS_", "OMP_", "MKL_", "BLIS_", "NVIDIA_", "CUBLAS_"} {
			if strings.HasPrefix(variable, prefix) {
				k.Environment = append(k.Environment, variable)
			}
		}
	}
	slices.Sort(k.Environment)
	k.MLX, k.Device, k.CPUs = mlx.Version(), p.device.String(), runtime.NumCPU()
	for _, d := range mlx.Devices() {
		if d.Device == p.device {
			k.Architecture, k.Processor = d.Architecture, d.Name
		}
	}
	if p.device == mlx.CPU && k.Processor == "" {
		k.Processor = processor()
	}
	return k, nil
}

// processor returns what Linux tells about the first processor, without its current speed.
func processor() string {
	keys := []string{"model name", "flags", "Features", "CPU part"}
	text, _ := os.ReadFile("/proc/cpuinfo")
	first, _, _ := strings.Cut(string(text), "\n\n")
	var lines []string
	for line := range strings.Lines(first) {
		if name, _, _ := strings.Cut(line, ":"); slices.Contains(keys, strings.TrimSpace(name)) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// folderKey identifies the files in a folder. It does not enter folders inside.
func folderKey(fsys fs.FS, dir string) (string, error) {
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return "", err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, path.Join(dir, e.Name()))
		}
	}
	return filesKey(fsys, names)
}

// filesKey identifies files. Those that are not on a disk, such as embedded ones, are hashed if
// they are small, and an error otherwise.
func filesKey(fsys fs.FS, names []string) (string, error) {
	const largest = 64 << 20
	h := sha256.New()
	for _, name := range names {
		info, err := fs.Stat(fsys, name)
		if err != nil {
			return "", err
		}
		if info.IsDir() {
			continue // which a link leads to
		}
		version, ok := disk.Version(info)
		if !ok {
			if info.Size() > largest {
				return "", fmt.Errorf("%s: is not on a disk", name)
			}
			data, err := fs.ReadFile(fsys, name)
			if err != nil {
				return "", err
			}
			version = fmt.Sprintf("%x", sha256.Sum256(data))
		}
		fmt.Fprintf(h, "%q %s\n", name, version)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// usesDisk reports whether the run's prompt embeddings may come from the cache on disk. Processes that run a text
// encoder in stages have caches of their own, and run it together.
func (r *Run) usesDisk() bool {
	return r.disk != nil && r.Hook == nil && r.Overrides == nil && r.Split != SplitStages
}

// embeddingsKey returns the key of the output of a text encoder for a prompt.
func (r *Run) embeddingsKey(t *family.PromptEncoding, prompt *prompt) []byte {
	c := r.disk
	k := embeddingsKey{
		Machine: c.machine, Operations: mlx.Replacements(), Tuning: tuning.InUse(r.device).String(),
		Class: r.Class, Configs: c.configs, Encoder: t.Encoder, Output: t.Embeds, Dtype: r.dtype.String(),
		Quantize: r.loader.Quantize, LoRAs: c.loras[t.Encoder], RuntimeLoRA: r.loader.RuntimeLoRA,
		Prompt: prompt.text, PrefixTokens: t.PrefixTokens, Limit: r.tokenLimit(t),
	}
	for _, dir := range folders(t) {
		k.Files = append(k.Files, c.folders[dir])
	}
	if t.After != nil {
		k.LoRAs = slices.Concat(k.LoRAs, c.loras[t.After.Encoder])
	}
	if t.SeesReferences {
		for _, img := range r.references() {
			k.Images = append(k.Images, hex.EncodeToString(img.hash[:]))
		}
	}
	key, err := json.Marshal(k)
	if err != nil {
		panic(err) // the key has only text and numbers
	}
	return key
}

// findCached sets r.cached to the text encoders whose output for all prompts of the run is in the
// cache on disk.
func (r *Run) findCached() {
	r.cached = map[string]bool{}
	if !r.usesDisk() {
		return
	}
	for i, t := range r.family.PromptEncodings(r.References) {
		cached := true
		for _, prompt := range r.prompts {
			if i >= len(prompt.tokens) || prompt.tokens[i].Count == 0 || !r.disk.Has(r.embeddingsKey(&t, prompt)) {
				cached = false
			}
		}
		if known, ok := r.cached[t.Encoder]; ok {
			cached = cached && known
		}
		r.cached[t.Encoder] = cached
	}
}

// tokensOnDisk returns the numbers of tokens that were stored with the output of a text encoder, and
// reports whether there are any and no others are needed.
func (r *Run) tokensOnDisk(t *family.PromptEncoding, prompt *prompt) (tokens family.Tokens, ok bool) {
	if !r.usesDisk() || t.NeedsIDs {
		return tokens, false
	}
	var lost int
	_, err := fmt.Sscanf(r.disk.Note(r.embeddingsKey(t, prompt)), noteFormat, &tokens.Count, &tokens.Total, &lost)
	if err != nil || lost < 0 || lost > len(prompt.text) {
		return family.Tokens{}, false
	}
	tokens.Lost = prompt.text[len(prompt.text)-lost:]
	return tokens, true
}

// noteFormat has the count and the total of a prompt's tokens, and the size of what is lost in bytes:
// not the prompt, which the cache does not contain.
const noteFormat = "%d %d %d"

// fromDisk returns the output of a text encoder from the cache on disk, nil if it is not there.
func (r *Run) fromDisk(key []byte) *mlx.Array {
	found := r.disk.Get(key)
	if found == nil {
		return nil
	}
	dtype, ok := nn.DtypeOf(found.Dtype)
	if !ok {
		return nil
	}
	return mlx.FromBytes(found.Data, dtype, found.Shape...)
}

// toDisk stores the output of a text encoder, unless it has values that are not finite, whose
// cause is to be found in the weights.
func (r *Run) toDisk(key []byte, embeds *mlx.Array, tokens *family.Tokens) {
	dtype, ok := nn.FileDtype(embeds.Dtype())
	if !ok || !embeds.AllFinite() {
		return
	}
	r.disk.Put(key, &checkpoint.Array{Dtype: dtype, Shape: embeds.Shape(), Data: embeds.Bytes()},
		fmt.Sprintf(noteFormat, tokens.Count, tokens.Total, len(tokens.Lost)))
}

// folders lists the folders of the components that a prompt goes through.
func folders(t *family.PromptEncoding) []string {
	list := []string{t.Encoder, t.Tokenizer}
	if t.After != nil {
		list = append(list, folders(t.After)...)
	}
	if t.SeesReferences {
		list = append(list, processors)
	}
	return list
}

// isTextEncoder reports whether a prompt goes through the component in a folder.
func (p *Pipeline) isTextEncoder(dir string) bool {
	return slices.ContainsFunc(p.family.PromptEncodings(nil), func(t family.PromptEncoding) bool { return t.Encoder == dir })
}
