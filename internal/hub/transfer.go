package hub

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/gomflux/gomflux/internal/filehash"
	"github.com/gomflux/gomflux/internal/oserr"
)

const (
	// connections is the number of concurrent connections of a Pull.
	connections = 8
	// piece is the largest range of a request, in bytes.
	piece = 64 << 20
	// first is the size of the first range of a file, in bytes. Its response shows
	// whether the server supports ranges.
	first = 1 << 20
	// recordEvery is the interval between two records of a partial download.
	recordEvery = time.Second
)

// check compares the contents of r with the file's size and hash.
func (f File) check(r io.Reader) error {
	h, name := sha256.New(), "SHA-256"
	if !f.LFS {
		h, name = sha1.New(), "git hash"
		fmt.Fprintf(h, "blob %d\x00", f.Size)
	}
	n, err := io.Copy(h, r)
	if err != nil {
		return err
	}
	if n != f.Size {
		return &corruptError{fmt.Sprintf("%d bytes, expected %d", n, f.Size)}
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != f.Hash {
		return &corruptError{fmt.Sprintf("%s %s, expected %s", name, sum, f.Hash)}
	}
	return nil
}

// A corruptError means that the contents of a complete file are wrong.
type corruptError struct{ detail string }

func (e *corruptError) Error() string { return "file is damaged: " + e.detail }

// A temporaryError is worth a retry.
type temporaryError struct{ error }

func (e temporaryError) Unwrap() error { return e.error }

// A download downloads one file.
type download struct {
	client   *Client
	info     *Info
	file     File
	blob     string              // path of the complete file
	slots    *semaphore.Weighted // one for each connection
	progress func(change int64)  // is told how many bytes were gained or lost

	out *os.File

	mu     sync.Mutex
	done   spans
	ranged bool // the server supports ranges
}

// partName and recordName return the paths of a partial download and its record.
// They differ from huggingface_hub's names, since some of its versions assume
// that a file with their name is the beginning of the complete file.
func (d *download) partName() string   { return d.blob + ".gomflux.incomplete" }
func (d *download) recordName() string { return d.blob + ".gomflux.json" }

// spansOn returns the complete spans of a partial download, according to its
// record.
func spansOn(part, record string, size int64) spans {
	info, err := os.Lstat(part)
	if err != nil || !info.Mode().IsRegular() || info.Size() != size {
		return nil
	}
	data, err := os.ReadFile(record)
	if err != nil {
		return nil
	}
	done, err := parseRecord(data, size)
	if err != nil {
		return nil
	}
	return done
}

// run downloads the missing part of the file and, if its hash is right, moves it
// to its place. After an interruption a later run resumes. The caller holds the
// file's lock.
func (d *download) run(ctx context.Context) (err error) {
	d.done = spansOn(d.partName(), d.recordName(), d.file.Size)
	// a partial download of older versions of huggingface_hub is the file's beginning
	if old := d.blob + ".incomplete"; d.done == nil {
		if info, err := os.Lstat(old); err == nil && info.Mode().IsRegular() && info.Size() > 0 && info.Size() <= d.file.Size {
			if err := os.Rename(old, d.partName()); err != nil {
				return err
			}
			d.done.add(0, info.Size())
		}
	}
	d.out, err = os.OpenFile(d.partName(), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, d.out.Close()) }()
	if err := d.out.Truncate(d.file.Size); err != nil {
		return err
	}
	d.progress(d.done.bytes())
	for again := range 2 {
		if err := d.fill(ctx); err != nil {
			return err
		}
		err := d.file.check(filehash.Reader(ctx, io.NewSectionReader(d.out, 0, d.file.Size)))
		var corrupt *corruptError
		switch {
		case err == nil:
			return d.finish()
		case !errors.As(err, &corrupt):
			return err
		}
		// any of the bytes may be wrong: start again
		d.progress(-d.done.bytes())
		d.done = nil
		if err := d.record(); err != nil {
			return err
		}
		if again == 1 {
			os.Remove(d.partName())
			os.Remove(d.recordName())
			return err
		}
	}
	panic("unreachable")
}

// finish syncs the complete file and moves it to its place.
func (d *download) finish() error {
	if err := d.out.Sync(); err != nil {
		return err
	}
	if err := os.Rename(d.partName(), d.blob); err != nil {
		return err
	}
	os.Remove(d.recordName())
	return nil
}

// record writes the record of the complete spans.
func (d *download) record() error {
	d.mu.Lock()
	data := d.done.marshal(d.file.Size)
	d.mu.Unlock()
	return replaceFile(d.recordName(), data)
}

// replaceFile writes a file, replacing an existing one. The caller holds a lock,
// so the temporary name can be fixed, and a killed process leaves at most one
// temporary file.
func replaceFile(path string, data []byte) error {
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, data, 0o666); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// fill downloads all missing bytes, over several connections if the server
// supports ranges.
func (d *download) fill(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := every(ctx, recordEvery, func() {
		if err := d.record(); err != nil {
			cancel(err)
		}
	})
	defer func() {
		cancel(nil)
		stop()
		err = cmp.Or(err, d.record())
	}()
	for {
		rest := d.missing(first)
		if len(rest) == 0 {
			return nil
		}
		if err := d.fetchSpan(ctx, rest[0], true); err != nil {
			return err
		}
		if !d.ranged {
			continue // after a cut connection the whole file is requested again
		}
		pieces, ctx := errgroup.WithContext(ctx)
		pieces.SetLimit(connections)
		for _, s := range d.missing(piece) {
			pieces.Go(func() error { return d.fetchSpan(ctx, s, false) })
		}
		if err := pieces.Wait(); err != nil {
			return err
		}
	}
}

func (d *download) missing(limit int64) spans {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done.missing(d.file.Size, limit)
}

// fetchSpan downloads a span. It retries as long as requests make progress. alone
// is as in request.
func (d *download) fetchSpan(ctx context.Context, s span, alone bool) error {
	if d.slots.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}
	defer d.slots.Release(1)
	for failures := 0; ; {
		before := d.missingIn(s)
		err := d.request(ctx, s, alone)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		left := d.missingIn(s)
		if err == nil && left > 0 {
			err = temporaryError{io.ErrUnexpectedEOF}
		}
		var temporary temporaryError
		if err == nil || !errors.As(err, &temporary) {
			return err
		}
		if left == 0 {
			return nil // only bytes after the span are missing
		}
		if left < before {
			failures = 0
		}
		if failures++; failures > tries {
			return fmt.Errorf("%w (after %d tries without progress)", err, tries)
		}
		for _, x := range d.missing(piece) {
			if x.begin >= s.begin && x.begin < s.end {
				s.begin = x.begin // continue where the connection was cut
				break
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(d.client.waitMin<<(failures-1), d.client.waitMax)):
		}
	}
}

// missingIn returns the number of missing bytes of a span.
func (d *download) missingIn(s span) (n int64) {
	for _, x := range d.missing(piece) {
		n += max(0, min(x.end, s.end)-max(x.begin, s.begin))
	}
	return n
}

// request requests a span once. alone means that no other span of the file is
// being downloaded, so that a server without support for ranges may send the
// whole file instead.
func (d *download) request(ctx context.Context, s span, alone bool) error {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, fileKey{}, d.file))
	defer cancel(nil)
	header := http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", s.begin, s.end-1)}}
	resp, err := d.client.get(ctx, d.client.fileURL(d.info, d.file), header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := checkLinked(ctx, resp.Header); err != nil {
		return err
	}
	sent, err := d.sentSpan(resp, s, alone)
	if err != nil {
		return err
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return temporaryError{fmt.Errorf("the server sent the unrequested encoding %.20q", e)}
	}
	if n := resp.ContentLength; n >= 0 && n != sent.end-sent.begin {
		if sent.begin == 0 && sent.end == d.file.Size {
			return &changedError{"size", strconv.FormatInt(n, 10), strconv.FormatInt(d.file.Size, 10)}
		}
		return temporaryError{fmt.Errorf("the server sent %d bytes, expected %d", n, sent.end-sent.begin)}
	}
	return d.receive(ctx, resp.Body, sent, cancel)
}

// sentSpan returns the span that a response to the request for s contains.
func (d *download) sentSpan(resp *http.Response, s span, alone bool) (span, error) {
	switch resp.StatusCode {
	case http.StatusPartialContent:
		begin, end, size, err := parseContentRange(resp.Header.Get("Content-Range"))
		switch {
		case err != nil:
			return span{}, temporaryError{err}
		case size >= 0 && size != d.file.Size:
			return span{}, &changedError{"size", strconv.FormatInt(size, 10), strconv.FormatInt(d.file.Size, 10)}
		case begin != s.begin || end > s.end:
			return span{}, temporaryError{fmt.Errorf("the server sent bytes %d to %d, expected %d to %d", begin, end, s.begin, s.end)}
		}
		if alone {
			d.ranged = true
		}
		return span{begin, end}, nil
	case http.StatusOK:
		if !alone {
			return span{}, temporaryError{errors.New("the server ignored the requested range")}
		}
		return span{0, d.file.Size}, nil
	}
	err := d.client.statusError(resp, d.info.Repo, d.info.Revision)
	if !d.client.fromHub(resp) && resp.StatusCode < 500 {
		return span{}, temporaryError{err} // the redirect may have expired
	}
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return span{}, &changedError{"size", "smaller", strconv.FormatInt(d.file.Size, 10)}
	}
	return span{}, err
}

// errStalled ends a connection that stays silent.
var errStalled = errors.New("the connection stalled")

// receive writes the bytes of a span to the file, and ignores any after them.
func (d *download) receive(ctx context.Context, body io.Reader, sent span, cancel context.CancelCauseFunc) error {
	stalled := time.AfterFunc(d.client.stall, func() { cancel(errStalled) })
	defer stalled.Stop()
	buffer := make([]byte, 128<<10)
	for at := sent.begin; at < sent.end; {
		n, err := body.Read(buffer[:min(int64(len(buffer)), sent.end-at)])
		stalled.Reset(d.client.stall)
		if n > 0 {
			if _, err := d.out.WriteAt(buffer[:n], at); err != nil {
				return err
			}
			d.mu.Lock()
			before := d.done.bytes()
			d.done.add(at, at+int64(n))
			gained := d.done.bytes() - before
			d.mu.Unlock()
			d.progress(gained)
			at += int64(n)
		}
		if err != nil && at < sent.end {
			if context.Cause(ctx) == errStalled {
				err = errStalled
			}
			return temporaryError{fmt.Errorf("the connection was cut: %w", oserr.NoEOF(err))}
		}
	}
	return nil
}

var contentRange = regexp.MustCompile(`^bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)$`)

// parseContentRange parses a Content-Range header: the span, and the size of the
// file or -1 if it is not known.
func parseContentRange(header string) (begin, end, size int64, err error) {
	m := contentRange.FindStringSubmatch(header)
	if m == nil {
		return 0, 0, 0, fmt.Errorf("the server sent the invalid Content-Range %.80q", header)
	}
	// 18 digits cannot overflow
	begin, _ = strconv.ParseInt(m[1], 10, 64)
	end, _ = strconv.ParseInt(m[2], 10, 64)
	end++
	size = -1
	if m[3] != "*" {
		size, _ = strconv.ParseInt(m[3], 10, 64)
	}
	if begin >= end || size >= 0 && end > size {
		return 0, 0, 0, fmt.Errorf("the server sent the impossible Content-Range %.80q", header)
	}
	return begin, end, size, nil
}

// sizeIs reports whether path is a regular file of that size. It follows
// symlinks.
func sizeIs(path string, size int64) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() == size
}
