// Package serve has the command serve, which runs the server of package serve at the top level.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/serve"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/gallery"
)

const serveHelp = `Serve keeps a model in memory, and generates images for programs and people over
HTTP. It prints its address on standard output when it is ready.

MODELS
Clients can name the built-in models, the models in the Hugging Face cache and
those of --model, whose first is the default. Without --model the default is
` + cli.DefaultModel + ` if it is downloaded, and shapes otherwise. A model is loaded
when it is needed, and one at a time is in memory. --keep-alive is how long it
stays there without jobs: 0 frees it at once, forever keeps it. A language model
that rewrites prompts or describes images is next to it, if there is room.

Flags about weights, device and memory apply to all models, and --lora to the
default model and those of --model. A client can name LoRAs of the Hugging Face
cache and of LORA_LIBRARY_PATH, but no files.

A model that is known but not here can be downloaded from the page, as gomflux
pull does it, unless --no-pull is given. A server that other machines may use
(another address, --token-file, --allowed-host or --base-url) needs --pull for
that, since downloads fill its disk and are made with its token for the hub.

With gomflux launch --local 2 -- serve, or on several machines, rank 0 is the
server, and all ranks generate its images together, as --split says.

QUEUE
One job at a time runs, and up to --max-queue wait. Clients take turns, image by
image. If the server can have several clients, none can take all places: one
that is refused (429) is told when to come back.

IMAGES
All images are kept in a folder, whatever asked for them, up to --pictures-size;
other files there are left alone. Each client sees its own images. --no-gallery
keeps them only in memory, for half an hour.

SAFETY
The server listens on this machine only (127.0.0.1), where no token is needed.
To let other machines in, listen on another address (--listen 0.0.0.0:7860) with
--token-file, a file of lines NAME:TOKEN that only its owner can read. Programs
send a token as Authorization: Bearer TOKEN, or as the password of Basic
authentication; people log in once at /login. Clients with different names do
not see each other's jobs and images. --insecure-no-token lets everyone in.

Without --tls-cert tokens and images are not encrypted. A request must name the
server in its Host header: localhost, the address of --listen, any IP address if
that is 0.0.0.0, or a name of --allowed-host. Pages of other sites cannot use
it, unless their origin is one of --allowed-origin. The files of --tls-cert and
--tls-key are read again when they change.

A line about each request and each job is logged on standard error, without
prompts unless --log-prompts is given.

PATHS
  /                  the page for people, which asks no other host
  /v1/               OpenAI's Images API: images/generations, images/edits,
                     models; chat/completions for captions and prompts
  /sdapi/v1/         AUTOMATIC1111's API: txt2img, img2img and others
  /api/v1/           jobs, their events, images and texts
                     (/api/v1/openapi.json)
  /healthz, /health  200 while jobs are accepted, without a token;
                     /healthz?deep=1 lists the models too, and is 503 if that
                     fails
  /version           versions of gomflux and Go, and the platform, as JSON
  /metrics           numbers of jobs, answers and bytes, for Prometheus
  /login, /logout    for people

STOPPING
At SIGTERM or Ctrl-C no new jobs are accepted, and those that wait fail. The
running job has --grace to end, and then the exit code is 0. A second signal
ends the server immediately.
` + serveExitStatus

// serveExitStatus is exitStatus with what is special about a server.
const serveExitStatus = `
EXIT STATUS
  0    stopped by a signal
  1    an error while running, or the address is in use
  2    invalid input: a flag, a file of tokens, a certificate
  3    a model of --model is missing, damaged or not supported
  4    the MLX libraries are missing or unusable
  130  stopped by a second signal`

// serveOptions are the flags of gomflux serve.
type serveOptions struct {
	listen    string
	keepAlive cli.Optional[time.Duration]
	cli.ModelFlags
	models []string // of --model
	cli.WeightFlags
	lowRAM bool
	split  cli.SplitFlag
	cli.PromptCacheFlags
	pull, noPull    bool
	tokenFile       string
	insecureNoToken bool
	allowedHosts    []string
	allowedOrigins  []string
	baseURL         string
	tlsCert, tlsKey string
	maxQueue        cli.Optional[int]
	maxPixels       cli.Optional[int]
	maxSteps        cli.Optional[int]
	maxBody         cli.Optional[int64]
	grace           cli.Optional[time.Duration]
	pictures        string
	picturesSize    cli.Optional[int64]
	noGallery       bool
	open            bool
	logPrompts      bool
	cli.OutputFlags

	tokens      []serve.Token
	certificate *serve.Certificate
}

// Values of flags that are not given.
const (
	serveAddress   = "127.0.0.1:7860"
	serveKeepAlive = 10 * time.Minute
	serveQueue     = 64
	servePixels    = 3840 * 2160
	serveBody      = 50e6
	serveGrace     = 30 * time.Second
	serveKeep      = 30 * time.Minute // ended jobs
	serveRest      = 5 * time.Second  // until memory that is not in use goes back to the system
)

func NewCommand() *cobra.Command {
	o := &serveOptions{
		ModelFlags: cli.NewModelFlags(), WeightFlags: cli.NewWeightFlags(),
		split: cli.NewSplitFlag(), keepAlive: cli.Parsed("duration", parseKeepAlive), grace: cli.Parsed("duration", parseDuration),
		picturesSize: cli.Parsed("size", cli.ParseSize),
		maxQueue:     cli.Count("jobs"), maxPixels: cli.Count("pixels"),
		maxSteps: cli.Count("steps"), maxBody: cli.Parsed("size", cli.ParseSize),
	}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Generate images over HTTP, with a page for people",
		Long:  serveHelp,
		Example: `  gomflux serve
  gomflux serve --model flux1-schnell --quantize 8 --keep-alive forever
  gomflux serve --listen 0.0.0.0:7860 --token-file ~/.config/gomflux/tokens
  gomflux serve --listen :443 --token-file tokens --tls-cert cert.pem --tls-key key.pem`,
		Args: cli.NoArgs(" (models are named with --model)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := o.Out(cmd)
			if err := o.validate(cmd.Flags().Changed); err != nil {
				return err
			}
			return o.run(cmd.Context(), out)
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func (o *serveOptions) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.listen, "listen", serveAddress, "`address` to listen on, as host:port; port 0 is any free one")
	f.StringArrayVarP(&o.models, "model", "m", nil, "`name` of a model, as of gomflux generate; the first is the default (can be repeated)")
	cli.AddBaseModel(f, &o.Base)
	f.Var(&o.keepAlive, "keep-alive", "how long a model stays in memory without jobs: 0, 30s, 10m, 2h or forever (default: 10m)")
	f.StringVar(&o.tokenFile, "token-file", "", "`file` with a line NAME:TOKEN for each client, which only its owner can read")
	f.BoolVar(&o.insecureNoToken, "insecure-no-token", false, "let everyone in who can reach the address")
	f.StringArrayVar(&o.allowedHosts, "allowed-host", nil, "another `name` for Host headers, such as that of a proxy (can be repeated)")
	f.StringArrayVar(&o.allowedOrigins, "allowed-origin", nil,
		"`URL` of another server whose pages may use the APIs, such as http://localhost:3000 (can be repeated)")
	f.StringVar(&o.baseURL, "base-url", "", "`URL` of this server for clients, if they reach it through a proxy")
	f.StringVar(&o.tlsCert, "tls-cert", "", "`file` with the certificate and its chain (PEM), for HTTPS")
	f.StringVar(&o.tlsKey, "tls-key", "", "`file` with the certificate's key (PEM)")
	f.Var(&o.maxQueue, "max-queue", fmt.Sprintf("largest number of jobs that wait (default: %d)", serveQueue))
	f.Var(&o.maxPixels, "max-pixels", fmt.Sprintf("largest number of pixels of an image (default: %d)", servePixels))
	f.Var(&o.maxSteps, "max-steps", fmt.Sprintf("largest number of steps of an image (default: %d)", api.DefaultSteps))
	f.Var(&o.maxBody, "max-body", "largest size of a request, such as 50MB (the default)")
	f.Var(&o.grace, "grace", "how long the running job may go on after SIGTERM, such as 30s (the default) or 5m")
	o.WeightFlags.Add(f, true)
	o.AddCompute(f)
	cli.AddLowRAM(f, &o.lowRAM)
	cli.AddSplit(f, &o.split)
	o.PromptCacheFlags.Add(f)
	f.BoolVar(&o.pull, "pull", false, "let clients download models (default if only this machine can use the server)")
	f.BoolVar(&o.noPull, "no-pull", false, "let no client download models")
	f.StringVar(&o.pictures, "pictures", "", "`folder` that keeps generated images (default: gomflux/pictures in the user's data folder)")
	f.Var(&o.picturesSize, "pictures-size", "size of its images, such as 2GB (the default), above which the oldest are removed")
	f.BoolVar(&o.noGallery, "no-gallery", false, "keep no images on disk")
	f.BoolVar(&o.open, "open", false, "open the page in a browser")
	f.BoolVar(&o.logPrompts, "log-prompts", false, "log prompts too")
	o.AddQuiet(f, "", "the address, warnings and errors")
}

// parseKeepAlive parses the value of --keep-alive, negative for ever.
func parseKeepAlive(s string) (time.Duration, error) {
	if s == "forever" {
		return -1, nil
	}
	return parseDuration(s)
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, errors.New("must be a duration, such as 30s, 10m or 2h")
	}
	return d, nil
}

// validate refuses flags that are missing or contradict each other, and reads tokens and
// certificate.
func (o *serveOptions) validate(given func(string) bool) (err error) {
	switch {
	case slices.Contains(o.models, ""):
		return cli.UsageErrorf("--model: the name is empty (leave it out for the default)")
	case o.Base != "" && len(o.models) == 0:
		return cli.UsageErrorf("--base-model needs a single-file model (--model FILE)")
	case given("token-file") && o.tokenFile == "":
		return cli.UsageErrorf("--token-file: the file name is empty")
	case given("token-file") && o.insecureNoToken:
		return cli.UsageErrorf("give either --token-file or --insecure-no-token")
	case o.noGallery && (given("pictures") || given("pictures-size")):
		return cli.UsageErrorf("--pictures and --pictures-size have no effect with --no-gallery")
	case o.pull && o.noPull:
		return cli.UsageErrorf("give either --pull or --no-pull")
	case given("pictures") && o.pictures == "":
		return cli.UsageErrorf("--pictures: the folder name is empty")
	}
	if err := o.WeightFlags.Validate(given); err != nil {
		return err
	}
	return o.validateNetwork(given)
}

// run serves until the context is canceled, by a signal.
func (o *serveOptions) run(ctx context.Context, out *ui.Output) (err error) {
	models, err := newServedModels(o, out)
	if err == nil {
		err = models.group.join(ctx, &o.split, out)
	}
	if err != nil {
		return err
	}
	group := &models.group
	if err := o.FindFolder(out); err != nil {
		return err
	}
	if _, err := o.OpenTuned(ctx, out, nil); err != nil {
		return err
	}
	level := slog.LevelInfo
	if o.Quiet {
		level = slog.LevelWarn
	}
	log := slog.New(slog.NewTextHandler(out.Stderr, &slog.HandlerOptions{Level: level}))
	models.log = log
	switch {
	case group.Rank() > 0:
		return group.follow(ctx, models)
	case group.Size() > 1:
		ctx, group.end = context.WithCancelCause(ctx)
		defer func() { err = cmp.Or(err, group.finish()) }()
		go group.wait()
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", o.listen)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if e, ok := errors.AsType[*net.OpError](err); ok {
			err = e.Err
		}
		return fmt.Errorf("--listen %s: %w", o.listen, err)
	}
	defer listener.Close()
	images, err := o.openGallery()
	if err != nil {
		return err
	}
	if images != nil {
		defer images.Close()
	}
	host, _, _ := net.SplitHostPort(o.listen)
	if !serve.IsLoopback(host) && len(o.tokens) > 0 && o.certificate == nil && !strings.HasPrefix(o.baseURL, "https:") {
		out.Warn("tokens and images are not encrypted (--tls-cert and --tls-key, or a proxy that has a certificate, would do that)")
	}
	sessions := "" // next to the folder of images that is not given
	if folder, err := gallery.Folder(); err == nil && len(o.tokens) > 0 {
		sessions = filepath.Join(filepath.Dir(folder), "ended-logins")
	}
	s := serve.New(serve.Config{
		Engine: engine.New(engine.Config{
			Open: models.open, OpenLanguage: models.openLanguage, Models: models.list,
			Queue: o.maxQueue.OrElse(serveQueue), KeepAlive: o.keepAlive.OrElse(serveKeepAlive),
			Shared: o.shared(host), Keep: serveKeep, Log: log,
			Memory: func() (active, cache int64) { return int64(mlx.ActiveMemory()), int64(mlx.CacheMemory()) },
			Release: func() { // an error means that the server shuts down
				group.tell(order{Do: "release"}, func() error { return gomflux.ReleaseMemory(ctx) })
			}, Rest: serveRest,
		}),
		Address: o.listen, Hosts: o.allowedHosts, BaseURL: o.baseURL, AllowedOrigins: o.allowedOrigins,
		Tokens: o.tokens, Sessions: sessions,
		MaxBody: o.maxBody.OrElse(serveBody), MaxPixels: o.maxPixels.OrElse(servePixels),
		MaxSteps: o.maxSteps.OrElse(api.DefaultSteps), Gallery: images,
		Pulls: o.puller(ctx, models), LoRAs: models.loras, TLS: o.tls(log), Grace: o.grace.OrElse(serveGrace),
		Log: log, LogPrompts: o.logPrompts, Version: gomflux.Version(), Ranks: group.Size(),
	})
	address := o.url(listener.Addr())
	out.Wrote(out.Line(address))
	if o.open {
		if err := openBrowser(address); err != nil {
			out.Warn("no browser was opened: %v", err)
		}
	}
	if err := s.Serve(ctx, listener); err != nil {
		return err
	}
	return out.Err()
}

// openGallery opens the folder that keeps images, nil with --no-gallery.
func (o *serveOptions) openGallery() (g *gallery.Gallery, err error) {
	if o.noGallery {
		return nil, nil
	}
	folder := o.pictures
	if folder == "" {
		if folder, err = gallery.Folder(); err != nil {
			return nil, cli.UsageErrorf("no folder for images: %w (give --pictures FOLDER, or --no-gallery)", err)
		}
	}
	g, err = gallery.Open(folder, o.picturesSize.OrElse(gallery.DefaultSize))
	return g, cli.Coded(cli.ExitUsage, err)
}

// openBrowser opens an address in the user's browser.
func openBrowser(address string) error {
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	}
	cmd := exec.Command(program, address)
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait()
	return nil
}
