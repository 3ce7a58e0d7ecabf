package hub

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/gomflux/gomflux/internal/oserr"
)

// DefaultEndpoint is the hub that is asked unless HF_ENDPOINT names another.
const DefaultEndpoint = "https://huggingface.co"

// ErrNoAccess is wrapped by the errors about repositories and revisions that
// the hub does not have, or does not give to who asks.
var ErrNoAccess = errors.New("the hub does not give it")

// A Client asks a hub. NewClient makes one; it can be used by several goroutines.
type Client struct {
	// Endpoint is the hub's URL, without a slash at its end.
	Endpoint string
	// Token is sent to the hub, and to nobody else; "" for none.
	Token string
	// UserAgent is what the client calls itself.
	UserAgent string

	once sync.Once
	http *retryablehttp.Client
	// stall is how long a connection may bring nothing.
	stall time.Duration
	// waitMin and waitMax are how long is waited before something is tried again,
	// the first time and at most.
	waitMin, waitMax time.Duration
}

const (
	// tries is how often something is tried again that brings nothing.
	tries = 5
	// longestWait is how long a hub may ask to wait.
	longestWait = 5 * time.Minute
)

// NewClient returns a client by the environment variables that Hugging Face's
// tools heed: HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME.
func NewClient() (*Client, error) {
	c := &Client{Endpoint: strings.TrimRight(os.Getenv("HF_ENDPOINT"), "/"), stall: time.Minute, waitMin: time.Second, waitMax: 30 * time.Second}
	if c.Endpoint == "" {
		c.Endpoint = DefaultEndpoint
	}
	if u, err := url.Parse(c.Endpoint); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("HF_ENDPOINT is %q, expected a URL such as %s", c.Endpoint, DefaultEndpoint)
	}
	var err error
	c.Token, err = token()
	return c, err
}

// token is the user's: of the environment, or of the file in which logging in
// with Hugging Face's tools leaves it.
func token() (string, error) {
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if t := strings.TrimSpace(os.Getenv(name)); t != "" {
			return t, nil
		}
	}
	file := os.Getenv("HF_TOKEN_PATH")
	if file != "" {
		file = expand(file)
	} else {
		home, err := hfHome()
		if err != nil {
			return "", nil // no home, no file
		}
		file = filepath.Join(home, "token")
	}
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("the token for the Hugging Face hub, %s: %w", file, oserr.Bare(err))
	}
	t := strings.TrimSpace(string(data))
	if strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("the token for the Hugging Face hub, %s: is more than one word", file)
	}
	return t, nil
}

// Offline says whether HF_HUB_OFFLINE, or TRANSFORMERS_OFFLINE, forbids to ask
// the hub.
func Offline() bool {
	value := os.Getenv("HF_HUB_OFFLINE")
	if value == "" {
		value = os.Getenv("TRANSFORMERS_OFFLINE")
	}
	return slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(value))
}

// fileKey is the context's key of the File that is asked for.
type fileKey struct{}

// askingKey is the context's key of a first question, which is not tried again
// where nobody can be reached: that is a machine without a network.
type askingKey struct{}

// A changedError is about a file that is not what the hub has listed.
type changedError struct{ what, found, expected string }

func (e *changedError) Error() string {
	return fmt.Sprintf("is not what the hub has listed: its %s is %s, expected %s (try again: it may just have changed)", e.what, e.found, e.expected)
}

// client returns the HTTP client. Requests are tried again where nobody
// answers, the server fails, or it asks to wait.
func (c *Client) client() *retryablehttp.Client {
	c.once.Do(func() { c.http = c.newHTTP() })
	return c.http
}

func (c *Client) newHTTP() *retryablehttp.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // ranges are of the bytes as they are
	transport.ResponseHeaderTimeout = c.stall
	transport.MaxIdleConnsPerHost = connections
	// with HTTP/2 all ranges would share one connection, and its speed
	transport.ForceAttemptHTTP2 = false
	transport.Protocols = &http.Protocols{}
	transport.Protocols.SetHTTP1(true)
	r := retryablehttp.NewClient()
	r.HTTPClient = &http.Client{Transport: transport, CheckRedirect: c.checkRedirect}
	r.Logger = nil
	r.RetryMax, r.RetryWaitMin, r.RetryWaitMax = tries, c.waitMin, c.waitMax
	r.ErrorHandler = retryablehttp.PassthroughErrorHandler
	r.CheckRetry = func(ctx context.Context, resp *http.Response, err error) (bool, error) {
		var changed *changedError
		if errors.As(err, &changed) || errors.Is(err, errDowngrade) || resp != nil && askedToWait(resp) > longestWait {
			return false, nil
		}
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" && ctx.Value(askingKey{}) != nil {
			return false, nil
		}
		return retryablehttp.DefaultRetryPolicy(ctx, resp, err)
	}
	return r
}

// askedToWait is the time of a Retry-After header.
func askedToWait(resp *http.Response) time.Duration {
	return retryablehttp.DefaultBackoff(0, 0, 0, resp)
}

var errDowngrade = errors.New("it leads from HTTPS to HTTP, which is refused")

// checkRedirect lets the token go to the hub only, and compares what the hub
// says of the file it leads to.
func (c *Client) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > 10 {
		return errors.New("stopped after 10 redirects")
	}
	first := via[0].URL
	if first.Scheme == "https" && req.URL.Scheme != "https" {
		return errDowngrade
	}
	if req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
		req.Header.Del("Authorization")
	}
	if req.Response == nil {
		return nil
	}
	return checkLinked(req.Context(), req.Response.Header)
}

// checkLinked compares what the hub's headers say of a file.
func checkLinked(ctx context.Context, h http.Header) error {
	f, ok := ctx.Value(fileKey{}).(File)
	if !ok {
		return nil
	}
	if tag := etag(h.Get("X-Linked-Etag")); tag != "" && tag != f.Hash {
		return &changedError{"etag", tag, f.Hash}
	}
	if size := h.Get("X-Linked-Size"); size != "" && size != strconv.FormatInt(f.Size, 10) {
		return &changedError{"size", size, strconv.FormatInt(f.Size, 10)}
	}
	return nil
}

// etag is what is between the quotes of an ETag header.
func etag(header string) string {
	return strings.Trim(strings.TrimPrefix(header, "W/"), `"`)
}

// get asks for a URL of the hub. Whatever the answer is, its body is to be
// closed.
func (c *Client) get(ctx context.Context, address string, header http.Header) (*http.Response, error) {
	req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", c.UserAgent)
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := c.client().Do(req)
	if err != nil {
		if resp != nil {
			resp.Body.Close()
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var u *url.Error
		if errors.As(err, &u) { // its URL may be signed, which is nobody's business
			host := u.URL
			if parsed, err := url.Parse(u.URL); err == nil {
				host = parsed.Host
			}
			err = fmt.Errorf("%s: %w", host, u.Err)
		}
		return nil, err
	}
	return resp, nil
}

// fromHub says whether the hub itself gave an answer, and not who it led to.
func (c *Client) fromHub(resp *http.Response) bool {
	return c.Endpoint == resp.Request.URL.Scheme+"://"+resp.Request.URL.Host || strings.HasPrefix(c.Endpoint, resp.Request.URL.Scheme+"://"+resp.Request.URL.Host+"/")
}

// refused is the error of an answer that is not what was asked for.
func (c *Client) refused(resp *http.Response, repo, rev string) error {
	if !c.fromHub(resp) {
		return fmt.Errorf("%s answers %s", resp.Request.URL.Host, resp.Status)
	}
	page := c.Endpoint + "/" + repo
	withToken := "set HF_TOKEN to a token of yours, from " + c.Endpoint + "/settings/tokens"
	if c.Token != "" {
		withToken = "a token was sent, but its account has no access"
	}
	switch code := resp.Header.Get("X-Error-Code"); {
	case code == "GatedRepo":
		return fmt.Errorf("%w: it is gated: accept its conditions at %s, and %s", ErrNoAccess, page, withToken)
	case code == "RevisionNotFound":
		return fmt.Errorf("%w: there is no revision %s (see %s/commits/main)", ErrNoAccess, rev, page)
	case resp.StatusCode == http.StatusUnauthorized && c.Token != "":
		return fmt.Errorf("%w: there is no such repository, or it is private, or the token that was sent is not valid (see %s)", ErrNoAccess, page)
	case code == "RepoNotFound", resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusNotFound && code == "":
		return fmt.Errorf("%w: there is no such repository, or it is private or gated (if so, see %s, and %s)", ErrNoAccess, page, withToken)
	case resp.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%w: access is refused (see %s; %s)", ErrNoAccess, page, withToken)
	case resp.StatusCode == http.StatusTooManyRequests && askedToWait(resp) > 0:
		return fmt.Errorf("the hub has had too many requests, and asks to wait %v", askedToWait(resp))
	}
	message := ""
	if m := resp.Header.Get("X-Error-Message"); m != "" {
		message = fmt.Sprintf(": %.200q", m)
	}
	return fmt.Errorf("the hub answers %s%s", resp.Status, message)
}

// Info asks the hub about a repository at a revision, "" for the main branch.
func (c *Client) Info(ctx context.Context, repo, rev string) (*Info, error) {
	if !IsRepo(repo) {
		return nil, fmt.Errorf("%q is not the name of a repository (owner/name)", repo)
	}
	if rev == "" {
		rev = "main"
	}
	if !IsRevision(rev) {
		return nil, fmt.Errorf("%q is not the name of a revision", rev)
	}
	resp, err := c.get(context.WithValue(ctx, askingKey{}, true), c.Endpoint+"/api/models/"+repo+"/revision/"+url.PathEscape(rev)+"?blobs=true", nil)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot ask the hub: %w (gomflux list has what is here)", repo, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %w", repo, c.refused(resp, repo, rev))
	}
	const most = 64 << 20
	data, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil || len(data) == most {
		return nil, fmt.Errorf("%s: the hub's answer is cut or too long: %w", repo, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	info, err := parseInfo(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", repo, err)
	}
	if commitName.MatchString(rev) && info.Commit != rev {
		return nil, fmt.Errorf("%s: the hub answers with commit %s, expected %s", repo, info.Commit, rev)
	}
	info.Repo, info.Revision = repo, rev
	return info, nil
}

// fileURL is where the hub has a file.
func (c *Client) fileURL(info *Info, f File) string {
	parts := strings.Split(f.Path, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return c.Endpoint + "/" + info.Repo + "/resolve/" + info.Commit + "/" + strings.Join(parts, "/")
}

// small fetches a small file into memory, and checks it.
func (c *Client) small(ctx context.Context, info *Info, f File) (data []byte, err error) {
	const most = 1 << 20
	if f.Size > most {
		return nil, fmt.Errorf("%s: is of %d bytes, expected at most %d", f.Path, f.Size, most)
	}
	for range tries {
		var resp *http.Response
		resp, err = c.get(context.WithValue(ctx, fileKey{}, f), c.fileURL(info, f), nil)
		if err != nil {
			break
		}
		if resp.StatusCode != http.StatusOK {
			resp.Body.Close()
			return nil, c.refused(resp, info.Repo, info.Revision)
		}
		data, err = io.ReadAll(io.LimitReader(resp.Body, f.Size+1))
		resp.Body.Close()
		if err == nil {
			err = f.check(bytes.NewReader(data))
		}
		if err == nil {
			return data, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, fmt.Errorf("%s: %w", f.Path, oserr.NoEOF(err))
}
