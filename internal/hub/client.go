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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/textfile"
)

// DefaultEndpoint is the URL of the hub, unless HF_ENDPOINT is set.
const DefaultEndpoint = "https://huggingface.co"

// ErrNoAccess is wrapped by errors about repositories, revisions and files that
// do not exist on the hub or that the user has no access to.
var ErrNoAccess = errors.New("not available from the hub")

// A Client talks to a hub. NewClient creates it; it is safe for concurrent use.
type Client struct {
	// Endpoint is the hub's URL, without a slash at its end.
	Endpoint string
	// Token is the user's access token, sent to the hub only; "" without one.
	Token string
	// UserAgent is sent in the header of that name.
	UserAgent string
	// Waiting, if not nil, is told how long the hub asks to wait.
	Waiting func(time.Duration)

	once sync.Once
	http *retryablehttp.Client
	// stall is how long a connection may stay silent.
	stall time.Duration
	// waitMin is the pause before the first retry, waitMax the longest pause.
	waitMin, waitMax time.Duration
	// told is when a wait ends that Waiting was told of, in nanoseconds since 1970.
	told atomic.Int64
}

const (
	// tries is the number of attempts without progress before giving up.
	tries = 5
	// longestWait is the longest time that a hub may ask to wait. It counts requests
	// in windows of five minutes.
	longestWait = 6 * time.Minute
)

// NewClient returns a client that is configured by the environment variables of
// Hugging Face's tools: HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME,
// HF_HUB_DISABLE_IMPLICIT_TOKEN.
func NewClient() (*Client, error) {
	c := &Client{
		Endpoint: strings.TrimRight(os.Getenv("HF_ENDPOINT"), "/"),
		stall:    time.Minute, waitMin: time.Second, waitMax: 30 * time.Second,
	}
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

// envNoToken is the variable that forbids to send the user's token.
const envNoToken = "HF_HUB_DISABLE_IMPLICIT_TOKEN"

// token returns the user's token, from the environment or from the file that
// `hf auth login` writes; "" if there is no token. As in huggingface_hub it may
// be broken into lines.
func token() (string, error) {
	if isTrue(os.Getenv(envNoToken)) {
		return "", nil
	}
	clean := func(source, text string) (string, error) {
		text = strings.TrimSpace(strings.NewReplacer("\r", "", "\n", "").Replace(text))
		if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return "", fmt.Errorf("the token for the Hugging Face hub in %s is not valid: expected a single word", source)
		}
		return text, nil
	}
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if t, err := clean(name, os.Getenv(name)); t != "" || err != nil {
			return t, err
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
		return "", fmt.Errorf("cannot read the token for the Hugging Face hub: %s: %w", file, oserr.Bare(err))
	}
	if data, err = textfile.Decode(data); err != nil {
		return "", fmt.Errorf("the token for the Hugging Face hub in %s %w", file, err)
	}
	return clean(file, string(data))
}

// Offline reports whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids access
// to the hub.
func Offline() bool {
	return isTrue(cmp.Or(os.Getenv("HF_HUB_OFFLINE"), os.Getenv("TRANSFORMERS_OFFLINE")))
}

// isTrue reports whether Hugging Face's tools take a variable's value for true.
func isTrue(value string) bool {
	return slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(value))
}

// fileKey is the context key of the File that a request is for.
type fileKey struct{}

// firstKey is the context key of the first request of a command. It is not
// retried if the connection fails, since the machine then has no network.
type firstKey struct{}

// A changedError means that the server's file differs from the hub's listing.
type changedError struct{ what, found, expected string }

func (e *changedError) Error() string {
	return fmt.Sprintf("file does not match the hub's listing: its %s is %s, expected %s (try again: it may just have changed)",
		e.what, e.found, e.expected)
}

// client returns the HTTP client. It retries requests if the connection or the
// server fails, or if the server asks to wait.
func (c *Client) client() *retryablehttp.Client {
	c.once.Do(func() { c.http = c.newHTTP() })
	return c.http
}

func (c *Client) newHTTP() *retryablehttp.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // ranges count bytes that are not compressed
	transport.ResponseHeaderTimeout = c.stall
	transport.MaxIdleConnsPerHost = connections
	// with HTTP/2 all ranges would share the bandwidth of one connection
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
		if errors.As(err, &op) && op.Op == "dial" && ctx.Value(firstKey{}) != nil {
			return false, nil
		}
		if err == nil && resp.StatusCode == http.StatusRequestTimeout {
			return true, nil
		}
		return retryablehttp.DefaultRetryPolicy(ctx, resp, err)
	}
	r.Backoff = func(least, most time.Duration, attempt int, resp *http.Response) time.Duration {
		if wait := askedToWait(resp); wait > 0 {
			now, until := time.Now(), c.told.Load() // connections wait together
			if until <= now.UnixNano() && c.told.CompareAndSwap(until, now.Add(wait).UnixNano()) && c.Waiting != nil {
				c.Waiting(wait)
			}
			return wait
		}
		return retryablehttp.DefaultBackoff(least, most, attempt, resp)
	}
	return r
}

// rateLimit matches the RateLimit header of a hub that counts requests, when none
// are left for a number of seconds.
var rateLimit = regexp.MustCompile(`"\w+"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,9})`)

// askedToWait returns how long the server asks to wait, with the header RateLimit
// or Retry-After; 0 if it does not.
func askedToWait(resp *http.Response) time.Duration {
	if resp == nil {
		return 0
	}
	if m := rateLimit.FindStringSubmatch(resp.Header.Get("RateLimit")); m != nil && resp.StatusCode == http.StatusTooManyRequests {
		seconds, _ := strconv.Atoi(m[1])
		return time.Duration(seconds+1) * time.Second // they are rounded
	}
	return retryablehttp.DefaultBackoff(0, 0, 0, resp)
}

var errDowngrade = errors.New("refusing a redirect from HTTPS to HTTP")

// origin returns the part of a URL before its path.
func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }

// hubs are the origins of the hub to which mirrors redirect.
var hubs = []string{DefaultEndpoint, "https://hf.co"}

// checkRedirect removes the token from requests to other hosts than the hub's, and
// compares the headers of the hub's redirect with the listed file.
func (c *Client) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > 10 {
		return errors.New("stopped after 10 redirects")
	}
	first := via[0].URL
	if first.Scheme == "https" && req.URL.Scheme != "https" {
		return errDowngrade
	}
	sent := via[len(via)-1].Header.Get("Authorization")
	if to := origin(req.URL); sent != "" && (to == origin(first) || slices.Contains(hubs, to)) {
		req.Header.Set("Authorization", sent)
	} else {
		req.Header.Del("Authorization")
	}
	if req.Response == nil {
		return nil
	}
	return checkLinked(req.Context(), req.Response.Header)
}

// checkLinked compares the hub's X-Linked-* headers with the requested file.
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

// etag returns the value between the quotes of an ETag header.
func etag(header string) string {
	return strings.Trim(strings.TrimPrefix(header, "W/"), `"`)
}

// get requests a URL of the hub. The caller closes the response's body, whatever
// the status.
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
		if errors.As(err, &u) { // keep the query secret: it may contain a signature
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

// fromHub reports whether the response came from the hub itself, not from a host
// that it redirected to.
func (c *Client) fromHub(resp *http.Response) bool {
	from := origin(resp.Request.URL)
	return c.Endpoint == from || strings.HasPrefix(c.Endpoint, from+"/") || slices.Contains(hubs, from)
}

// statusError returns the error for a response with an unexpected status.
func (c *Client) statusError(resp *http.Response, repo, rev string) error {
	if !c.fromHub(resp) {
		return fmt.Errorf("%s answered %s", resp.Request.URL.Host, resp.Status)
	}
	page := c.Endpoint + "/" + repo
	said := resp.Header.Get("X-Error-Message")
	message := ""
	if said != "" {
		message = fmt.Sprintf(": %.300q", said)
	}
	withToken := "set HF_TOKEN to your token from " + c.Endpoint + "/settings/tokens"
	switch {
	case c.Token != "":
		withToken = "the account of the token that was sent has no access"
	case isTrue(os.Getenv(envNoToken)):
		withToken = envNoToken + " forbids to send your token"
	}
	switch code := resp.Header.Get("X-Error-Code"); {
	case code == "GatedRepo" && c.Token == "":
		return fmt.Errorf("%w: the repository is gated (accept its conditions at %s; %s)", ErrNoAccess, page, withToken)
	case code == "GatedRepo": // the message tells a review that is pending from a token without the permission
		return fmt.Errorf("%w: the repository is gated (accept its conditions at %s; %s)%s", ErrNoAccess, page, withToken, message)
	case code == "RevisionNotFound":
		return fmt.Errorf("%w: no revision %s (see %s/commits/main)", ErrNoAccess, rev, page)
	case said == "Access to this resource is disabled.":
		return fmt.Errorf("%w: the hub has disabled access to the repository (see %s)", ErrNoAccess, page)
	case said == "Invalid credentials in Authorization header":
		return fmt.Errorf("%w: the token that was sent is not valid (set HF_TOKEN to one from %s/settings/tokens, or log in again: "+
			"hf auth login)", ErrNoAccess, c.Endpoint)
	case resp.StatusCode == http.StatusUnauthorized && c.Token != "":
		return fmt.Errorf("%w: the repository does not exist or is private, or the token that was sent is not valid (see %s)",
			ErrNoAccess, page)
	case code == "RepoNotFound", resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusNotFound && code == "":
		return fmt.Errorf("%w: the repository does not exist, or it is private or gated (if so, see %s, and %s)",
			ErrNoAccess, page, withToken)
	case resp.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%w: access denied (see %s; %s)%s", ErrNoAccess, page, withToken, message)
	case resp.StatusCode == http.StatusTooManyRequests && askedToWait(resp) > 0:
		return fmt.Errorf("too many requests: the hub asks to wait %v", askedToWait(resp))
	}
	return fmt.Errorf("the hub answered %s%s", resp.Status, message)
}

// Info asks the hub for the files and the licence of a repository at a revision;
// "" is the main branch.
func (c *Client) Info(ctx context.Context, repo, rev string) (*Info, error) {
	if !IsRepo(repo) {
		return nil, fmt.Errorf("%q is not the name of a repository (owner/name)", repo)
	}
	if rev == "" {
		rev = "main"
	}
	if !IsRevision(rev) {
		return nil, fmt.Errorf("%q is not a valid name of a revision", rev)
	}
	address := c.Endpoint + "/api/models/" + repo + "/revision/" + url.PathEscape(rev) + "?blobs=true"
	resp, err := c.get(context.WithValue(ctx, firstKey{}, true), address, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot reach the hub: %w (gomflux list shows the models on this machine)", repo, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %w", repo, c.statusError(resp, repo, rev))
	}
	const limit = 64 << 20
	data, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err != nil || len(data) == limit {
		return nil, fmt.Errorf("%s: the hub's answer is cut off or too long: %w", repo, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	info, err := parseInfo(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", repo, err)
	}
	if commitName.MatchString(rev) && info.Commit != rev {
		return nil, fmt.Errorf("%s: the hub answered with commit %s, expected %s", repo, info.Commit, rev)
	}
	info.Repo, info.Revision = repo, rev
	return info, nil
}

// fileURL returns the URL of a file on the hub.
func (c *Client) fileURL(info *Info, f File) string {
	parts := strings.Split(f.Path, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return c.Endpoint + "/" + info.Repo + "/resolve/" + info.Commit + "/" + strings.Join(parts, "/")
}

// fetchSmall downloads a file of at most 1 MiB into memory and checks its hash.
func (c *Client) fetchSmall(ctx context.Context, info *Info, f File) (data []byte, err error) {
	const limit = 1 << 20
	if f.Size > limit {
		return nil, fmt.Errorf("%s: has %d bytes, expected at most %d", f.Path, f.Size, limit)
	}
	for range tries {
		var resp *http.Response
		resp, err = c.get(context.WithValue(ctx, fileKey{}, f), c.fileURL(info, f), nil)
		if err != nil {
			break
		}
		if resp.StatusCode != http.StatusOK {
			resp.Body.Close()
			return nil, c.statusError(resp, info.Repo, info.Revision)
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
