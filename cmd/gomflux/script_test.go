package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/draw"
	_ "image/jpeg"
	"image/png"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/bench"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/debug"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/generate"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/profile"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/picture"
)

// TestScripts runs the command as its users do. See testdata/script.
func TestScripts(t *testing.T) {
	transparent := modeltest.Transparent(t, "zimage-small")
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("GOMFLUX_MLX", absolute(libraries))
			for _, m := range modeltest.Models {
				if m.Variable != "" {
					env.Setenv(m.Variable, modeltest.Folder(t, m.Name))
				}
			}
			env.Setenv("TRANSPARENT_MODEL", transparent)
			env.Setenv("HF_PYTHON", os.Getenv("GOMFLUX_HF_PYTHON")) // a Python that has huggingface_hub
			env.Setenv("PICTURES", absolute(pictures))
			env.Setenv("COMFY", absolute("../../internal/checkpoint/testdata/comfy"))
			env.Setenv("UPSCALER", absolute("../../upscaler/testdata/network.safetensors"))
			env.Setenv("DECODER", absolute(tinyDecoder))
			env.Setenv("OTHER_DECODER", absolute(otherDecoder))
			env.Setenv(cli.EnvPromptCache, "0")             // not the user's; prompt_cache.txt has its own
			env.Setenv("HF_ENDPOINT", "http://127.0.0.1:1") // nobody
			env.Defer(func() { endSessions(env.WorkDir) })
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Getuid() == 0, nil
			case "mount":
				return canMount(), nil
			case "gpu":
				return gpuThere(), nil
			case "huggingface":
				return os.Getenv("GOMFLUX_HF_PYTHON") != "", nil
			}
			return false, fmt.Errorf("unknown condition %s", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   cmdExits,
			"refuses": cmdRefuses,
			"json":    cmdJSON,
			"chunks":  cmdChunks,
			"paint":   cmdPaint,
			"odd":     cmdOdd,
			"disk":    cmdDisk,
			"model":   cmdModel,
			"cut":     cmdCut,
			"flip":    cmdFlip,
			"picture": cmdPicture,
			"plant":   cmdPlant,
			"pixels":  cmdPixels,
			"inside":  cmdInside,
			"mask":    cmdMask,
			"only":    cmdOnly,
			"hub":     cmdHub,
			"lora":    cmdLoRA,
			"stream":  cmdStream,
			"trace":   cmdTrace,
		},
	})
}

// TestFlagsInScripts: no flag of generate, edit and bench is left out of the scripts.
func TestFlagsInScripts(t *testing.T) {
	mfluxImage := map[string]string{"generate": cli.MfluxStart, "edit": cli.MfluxEdit}
	for _, cmd := range []*cobra.Command{generate.NewCommand(), generate.NewEditCommand()} {
		testFlagsInScripts(t, cmd, append(cli.SortedKeys(cli.MfluxNames), mfluxImage[cmd.Name()], cli.MfluxLoRAs))
	}
	// most flags of inpaint are those of generate
	masks := &cobra.Command{Use: "inpaint"}
	o := generate.NewMaskFlags()
	o.Add(masks.Flags())
	testFlagsInScripts(t, masks, append([]string{"image", "image-strength", cli.MfluxStart, cli.MfluxEdit}, cli.MfluxMasks...))
	testFlagsInScripts(t, bench.NewCommand(), nil)
	for _, cmd := range debug.NewCommand(newRootCommand).Commands() {
		if !cmd.Hidden {
			testFlagsInScripts(t, cmd, nil)
		}
	}
}

func testFlagsInScripts(t *testing.T, cmd *cobra.Command, hidden []string) {
	names, err := filepath.Glob("testdata/script/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, name := range names {
		script, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(script)) {
			if _, args, ok := strings.Cut(line, "gomflux "+cmd.CommandPath()+" "); ok {
				for _, word := range strings.Fields(args) {
					flag, _, _ := strings.Cut(word, "=")
					used[flag] = true
				}
			}
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !used["--"+f.Name] {
			t.Errorf("--%s of %s is in no script", f.Name, cmd.Name())
		}
		if f.Shorthand != "" && !used["-"+f.Shorthand] {
			t.Errorf("-%s of %s is in no script", f.Shorthand, cmd.Name())
		}
	})
	for _, name := range hidden {
		if !used["--"+name] {
			t.Errorf("--%s of %s is in no script", name, cmd.Name())
		}
	}
}

// cmdExits runs a command that must end with a code: exits CODE COMMAND ARGS...
func cmdExits(ts *testscript.TestScript, _ bool, args []string) {
	want := number(ts, args[0])
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, expected %d", got, want)
	}
}

// cmdRefuses is exits for what leaves everything as it was and says why on one
// line of standard error: refuses CODE COMMAND ARGS...
func cmdRefuses(ts *testscript.TestScript, neg bool, args []string) {
	before := files(ts)
	cmdExits(ts, neg, args)
	if after := files(ts); !maps.Equal(before, after) {
		ts.Fatalf("files were %v and are %v", before, after)
	}
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("standard output: %q", out)
	}
	said := ts.ReadFile("stderr")
	if !strings.HasPrefix(said, "gomflux: ") || strings.Count(said, "\n") != 1 || !strings.HasSuffix(said, "\n") {
		ts.Fatalf("expected one line on standard error, found %q", said)
	}
}

// A fileState changes when a file is written.
type fileState struct {
	mode     fs.FileMode
	size     int64
	modified int64
}

// files are all files of the script, and its folders.
func files(ts *testscript.TestScript) map[string]fileState {
	found := map[string]fileState{}
	ts.Check(filepath.WalkDir(ts.Getenv("WORK"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		state := fileState{mode: info.Mode()}
		if !d.IsDir() {
			state.size, state.modified = info.Size(), info.ModTime().UnixNano()
		}
		found[path] = state
		return nil
	}))
	return found
}

// cmdJSON checks the lines of --json, of which it names the phases and other
// types, several of the same only once: json FILE WORD...
func cmdJSON(ts *testscript.TestScript, _ bool, args []string) {
	var words []string
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		var kind struct {
			MessageType string `json:"message_type"`
			Phase       string
		}
		ts.Check(json.Unmarshal([]byte(line), &kind))
		known := map[string]any{"start": &generate.JSONStart{}, "progress": &generate.JSONProgress{}, "picture": &generate.JSONPicture{},
			"profile": &profile.JSONLine{}, "warning": &ui.Message{}, "error": &ui.Message{}}
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(known[kind.MessageType]); err != nil {
			ts.Fatalf("%s: %v", line, err)
		}
		word := kind.MessageType
		if word == "progress" {
			word = kind.Phase
		}
		words = append(words, word)
	}
	if got, want := strings.Join(slices.Compact(words), " "), strings.Join(args[1:], " "); got != want {
		ts.Fatalf("found %q, expected %q", got, want)
	}
}

// cmdChunks checks what chunks a PNG file has, several of the same only once:
// chunks FILE NAME...
func cmdChunks(ts *testscript.TestScript, _ bool, args []string) {
	data := ts.ReadFile(args[0])
	var names []string
	for at := len("\x89PNG\r\n\x1a\n"); at < len(data); {
		names = append(names, data[at+4:at+8])
		at += 12 + int(binary.BigEndian.Uint32([]byte(data[at:])))
	}
	if got, want := strings.Join(slices.Compact(names), " "), strings.Join(args[1:], " "); got != want {
		ts.Fatalf("found %q, expected %q", got, want)
	}
}

// cmdPaint makes a PNG file, which has the parameters text of a file if one is
// given: paint FILE WIDTH HEIGHT [PARAMETERS]. A large one has no pixels.
func cmdPaint(ts *testscript.TestScript, _ bool, args []string) {
	width, height := number(ts, args[1]), number(ts, args[2])
	header := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(width)), uint32(height))
	chunks := chunk("IHDR", append(header, 8, 2, 0, 0, 0))
	if len(args) > 3 {
		chunks = append(chunks, chunk("tEXt", []byte("parameters\x00"+strings.TrimSpace(ts.ReadFile(args[3]))))...)
	}
	const signature = "\x89PNG\r\n\x1a\n"
	file := append([]byte(signature), chunks...)
	if width > 1000 {
		file = slices.Concat(file, chunk("IDAT", nil), chunk("IEND", nil))
	} else {
		var b strings.Builder
		ts.Check(png.Encode(&b, gradient(width, height)))
		file = append(file, b.String()[len(signature)+len(chunk("IHDR", make([]byte, 13))):]...)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), file, 0o666))
}

func gradient(width, height int) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range width * height {
		img.SetRGBA(i%width, i/width, color.RGBA{uint8(255 * (i % width) / width), uint8(255 * (i / width) / height), 128, 255})
	}
	return img
}

// cmdOdd makes the image of paint, as it is to be seen, in an unusual PNG
// file: of 16 bits, with an alpha channel that shows one white corner, or turned
// by its EXIF: odd KIND FILE WIDTH HEIGHT. A plain one has that corner too.
func cmdOdd(ts *testscript.TestScript, _ bool, args []string) {
	width, height := number(ts, args[2]), number(ts, args[3])
	seen := gradient(width, height)
	seen.SetRGBA(0, 0, color.RGBA{255, 255, 255, 255})
	var img image.Image = seen
	exif := ""
	switch args[0] {
	case "16":
		deep := image.NewNRGBA64(seen.Rect)
		draw.Draw(deep, deep.Rect, seen, image.Point{}, draw.Src)
		img = deep
	case "alpha":
		clear := image.NewNRGBA(seen.Rect)
		draw.Draw(clear, clear.Rect, seen, image.Point{}, draw.Src)
		clear.SetNRGBA(0, 0, color.NRGBA{9, 8, 7, 0})
		img = clear
	case "turned": // orientation 6: the first row is the right side
		turned := image.NewRGBA(image.Rect(0, 0, height, width))
		for i := range width * height {
			x, y := i%width, i/width
			turned.SetRGBA(y, width-1-x, seen.RGBAAt(x, y))
		}
		img = turned
		exif = "MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00"
	case "plain":
	default:
		ts.Fatalf("unknown kind %s", args[0])
	}
	var b strings.Builder
	ts.Check(png.Encode(&b, img))
	file := []byte(b.String())
	if exif != "" {
		file = slices.Insert(file, 8+25, chunk("eXIf", []byte(exif))...)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), file, 0o666))
}

// chunk is a chunk of a PNG file.
func chunk(name string, data []byte) []byte {
	body := append([]byte(name), data...)
	out := append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), body...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(body))
}

// endSessions ends debugging sessions that a failed script has left.
func endSessions(dir string) {
	folders, _ := filepath.Glob(filepath.Join(dir, "*/gomflux-debug"))
	for _, folder := range folders {
		cmd := exec.Command("gomflux", "debug", "terminate", "--user", "--yes")
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+filepath.Dir(folder))
		cmd.Run()
	}
}

// cmdDisk mounts a small disk: disk FOLDER SIZE
func cmdDisk(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	ts.Check(os.Mkdir(dir, 0o777))
	ts.Check(mount(dir, args[1]))
	ts.Defer(func() { exec.Command("umount", dir).Run() })
}

func mount(dir, size string) error {
	return exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "gomflux-test", dir).Run()
}

// canMount reports whether cmdDisk works here.
var canMount = sync.OnceValue(func() bool {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return false
	}
	defer os.Remove(dir)
	return mount(dir, "4k") == nil && exec.Command("umount", dir).Run() == nil
})

// gpuThere reports whether MLX finds a GPU.
var gpuThere = sync.OnceValue(func() bool {
	cmd := exec.Command("gomflux", "doctor")
	cmd.Env = append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries))
	out, _ := cmd.Output()
	return regexp.MustCompile(`(?m)^device +(metal|cuda)`).Match(out)
})

// cmdModel copies the tiny model, or another one: model FOLDER [MODEL]
func cmdModel(ts *testscript.TestScript, _ bool, args []string) {
	from := ts.Getenv("MODEL")
	if len(args) > 1 {
		from = args[1]
	}
	ts.Check(os.CopyFS(ts.MkAbs(args[0]), os.DirFS(from)))
}

// cmdCut takes bytes off a file's end: cut FILE BYTES
func cmdCut(ts *testscript.TestScript, _ bool, args []string) {
	file := ts.MkAbs(args[0])
	info, err := os.Stat(file)
	ts.Check(err)
	ts.Check(os.Truncate(file, info.Size()-int64(number(ts, args[1]))))
}

// cmdFlip changes the byte at an offset: flip FILE OFFSET
func cmdFlip(ts *testscript.TestScript, _ bool, args []string) {
	file := ts.MkAbs(args[0])
	data, err := os.ReadFile(file)
	ts.Check(err)
	data[number(ts, args[1])] ^= 0xff
	ts.Check(os.WriteFile(file, data, 0o666))
}

// cmdPicture checks a picture's format and size: picture FILE FORMAT WIDTH HEIGHT
func cmdPicture(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	defer f.Close()
	img, format, err := image.Decode(f)
	ts.Check(err)
	size := img.Bounds().Size()
	if format != args[1] || size.X != number(ts, args[2]) || size.Y != number(ts, args[3]) {
		ts.Fatalf("%s is a %s of %dx%d", args[0], format, size.X, size.Y)
	}
}

// cmdPixels compares two images, whatever is stored beside the pixels:
// pixels FILE FILE
func cmdPixels(ts *testscript.TestScript, neg bool, args []string) {
	var images []*image.RGBA
	for _, name := range args {
		p, err := picture.ReadFile(ts.MkAbs(name))
		ts.Check(err)
		images = append(images, p.Image)
	}
	equal := images[0].Rect == images[1].Rect && slices.Equal(images[0].Pix, images[1].Pix)
	if equal == neg {
		ts.Fatalf("%s and %s: equal pixels %v", args[0], args[1], equal)
	}
}

// cmdInside compares a part of two images: inside FILE FILE X,Y,WIDTH,HEIGHT
func cmdInside(ts *testscript.TestScript, neg bool, args []string) {
	var r [4]int
	for i, word := range strings.Split(args[2], ",") {
		r[i] = number(ts, word)
	}
	part := image.Rect(r[0], r[1], r[0]+r[2], r[1]+r[3])
	var images []*image.RGBA
	for _, name := range args[:2] {
		p, err := picture.ReadFile(ts.MkAbs(name))
		ts.Check(err)
		if !part.In(p.Image.Rect) {
			ts.Fatalf("%s has %v", name, p.Image.Rect)
		}
		images = append(images, p.Image)
	}
	differ := 0
	for y := part.Min.Y; y < part.Max.Y; y++ {
		for x := part.Min.X; x < part.Max.X; x++ {
			if images[0].RGBAAt(x, y) != images[1].RGBAAt(x, y) {
				differ++
			}
		}
	}
	if neg != (differ > 0) {
		ts.Fatalf("%d of %d pixels differ", differ, r[2]*r[3])
	}
}

// cmdMask makes a PNG file with a mask that is black left of a column and white from there on, in
// one channel, three, 16 bits, or transparent instead of white:
// mask FILE WIDTH HEIGHT COLUMN grey|rgb|16|clear
func cmdMask(ts *testscript.TestScript, _ bool, args []string) {
	r := image.Rect(0, 0, number(ts, args[1]), number(ts, args[2]))
	column := number(ts, args[3])
	kinds := map[string]draw.Image{
		"grey": image.NewGray(r), "rgb": image.NewRGBA(r), "16": image.NewGray16(r), "clear": image.NewNRGBA(r),
	}
	img, white := kinds[args[4]], image.Image(image.White)
	if args[4] == "clear" {
		white = image.Transparent
	}
	draw.Draw(img, r, image.Black, image.Point{}, draw.Src)
	draw.Draw(img, image.Rect(column, 0, r.Max.X, r.Max.Y), white, image.Point{}, draw.Src)
	var b strings.Builder
	ts.Check(png.Encode(&b, img))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(b.String()), 0o666))
}

// cmdLoRA makes a LoRA for a model of diffusers' layout, of a seed: lora FILE
// FOLDER SEED [MODULE...].
func cmdLoRA(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(modeltest.WriteLoRA(ts.MkAbs(args[0]), ts.MkAbs(args[1]), uint64(number(ts, args[2])), args[3:]...))
}

// cmdOnly checks what is in a folder, hidden files too: only FOLDER NAME...
func cmdOnly(ts *testscript.TestScript, _ bool, args []string) {
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got, want := strings.Join(names, " "), strings.Join(args[1:], " "); got != want {
		ts.Fatalf("found %q, expected %q", got, want)
	}
}

func number(ts *testscript.TestScript, s string) int {
	n, err := strconv.Atoi(s)
	ts.Check(err)
	return n
}
