package hub

import (
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

	"github.com/gomflux/gomflux/internal/oserr"
)

const (
	// connections is how many are open at a time, to all files together.
	connections = 8
	// piece is the most that one request asks for.
	piece = 64 << 20
	// first is what the first request for a file asks for, which shows whether
	// the server does ranges.
	first = 1 << 20
	// recordEvery is how often it is written down which bytes are there.
	recordEvery = time.Second
)

// check compares what r gives with the file's size and hash.
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
		return &corruptError{fmt.Sprintf("has %d bytes, expected %d", n, f.Size)}
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != f.Hash {
		return &corruptError{fmt.Sprintf("its %s is %s, expected %s", name, sum, f.Hash)}
	}
	return nil
}

// A corruptError says that all bytes of a file came, and that they are not its
// own.
type corruptError struct{ what string }

func (e *corruptError) Error() string { return "came damaged: " + e.what }

// A temporaryError is one of a single answer: another may go well.
type temporaryError struct{ error }

func (e temporaryError) Unwrap() error { return e.error }

// A download is a file on its way.
type download struct {
	client   *Client
	info     *Info
	file     File
	blob     string             // where it goes when it is whole
	slots    chan struct{}      // one for each connection
	progress func(change int64) // of the bytes that are there

	out *os.File

	mu     sync.Mutex
	done   spans
	ranged bool // the server does ranges
}

// Names of what an unfinished file is kept in: not those of huggingface_hub,
// versions of which take any file under theirs for the beginning of one.
func (d *download) partName() string   { return d.blob + ".gomflux.incomplete" }
func (d *download) recordName() string { return d.blob + ".gomflux.json" }

// spansOn reads which bytes of a file are there already.
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

// run fetches the file, or what is missing of it, and puts it in its place when
// it is whole and has the right hash. Whatever happens before that, a later run
// goes on from there. The lock is held.
func (d *download) run(ctx context.Context) (err error) {
	d.done = spansOn(d.partName(), d.recordName(), d.file.Size)
	// what older versions of huggingface_hub have of it is its beginning
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
	defer func() {
		if closing := d.out.Close(); err == nil {
			err = closing
		}
	}()
	if err := d.out.Truncate(d.file.Size); err != nil {
		return err
	}
	d.progress(d.done.bytes())
	for again := range 2 {
		if err := d.fill(ctx); err != nil {
			return err
		}
		err := d.file.check(readerWith(ctx, io.NewSectionReader(d.out, 0, d.file.Size)))
		var corrupt *corruptError
		switch {
		case err == nil:
			return d.finish()
		case !errors.As(err, &corrupt):
			return err
		}
		// which of the bytes are wrong cannot be told
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

// finish puts the whole file in its place. It is on the disk before it has its
// name.
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

// record writes down which bytes are there.
func (d *download) record() error {
	d.mu.Lock()
	data := d.done.marshal(d.file.Size)
	d.mu.Unlock()
	return replaceFile(d.recordName(), data)
}

// replaceFile writes a file, which takes the place of one that is there. It is
// for those who hold a lock: the temporary name is always the same, so that a
// process that is killed leaves one file at most.
func replaceFile(path string, data []byte) error {
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, data, 0o666); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// fill fetches all bytes that are missing, over several connections if the
// server does ranges.
func (d *download) fill(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(recordEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if err := d.record(); err != nil {
					cancel(err)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() {
		cancel(nil)
		<-stopped
		if e := d.record(); err == nil {
			err = e
		}
	}()
	for {
		rest := d.missing(first)
		if len(rest) == 0 {
			return nil
		}
		if err := d.insist(ctx, rest[0], true); err != nil {
			return err
		}
		if !d.ranged {
			continue // what was cut is asked for again, from the start
		}
		rest = d.missing(piece)
		var wait sync.WaitGroup
		for _, s := range rest {
			select {
			case d.slots <- struct{}{}:
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				break
			}
			wait.Go(func() {
				err := d.insist(ctx, s, false)
				<-d.slots
				if err != nil {
					cancel(err)
				}
			})
		}
		wait.Wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (d *download) missing(most int64) spans {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done.missing(d.file.Size, most)
}

// insist fetches a span, in as many requests as it takes while they bring
// something.
func (d *download) insist(ctx context.Context, s span, alone bool) error {
	if alone {
		select {
		case d.slots <- struct{}{}:
			defer func() { <-d.slots }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
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
			return nil // what was cut is more than the span
		}
		if left < before {
			failures = 0
		}
		if failures++; failures > tries {
			return fmt.Errorf("%w (after %d tries that brought nothing)", err, tries)
		}
		for _, x := range d.missing(piece) {
			if x.begin >= s.begin && x.begin < s.end {
				s.begin = x.begin // where it ended
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

// missingIn is how much of a span is not there.
func (d *download) missingIn(s span) (n int64) {
	for _, x := range d.missing(piece) {
		n += max(0, min(x.end, s.end)-max(x.begin, s.begin))
	}
	return n
}

// request asks for a span once. Alone it also takes the whole file, from a
// server that does no ranges.
func (d *download) request(ctx context.Context, s span, alone bool) error {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, fileKey{}, d.file))
	defer cancel(nil)
	resp, err := d.client.get(ctx, d.client.fileURL(d.info, d.file), http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", s.begin, s.end-1)}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := checkLinked(ctx, resp.Header); err != nil {
		return err
	}
	want := s
	switch resp.StatusCode {
	case http.StatusPartialContent:
		begin, end, size, err := parseContentRange(resp.Header.Get("Content-Range"))
		switch {
		case err != nil:
			return temporaryError{err}
		case size >= 0 && size != d.file.Size:
			return &changedError{"size", strconv.FormatInt(size, 10), strconv.FormatInt(d.file.Size, 10)}
		case begin != s.begin || end > s.end:
			return temporaryError{fmt.Errorf("the server sends the bytes from %d to %d, expected those from %d to %d", begin, end, s.begin, s.end)}
		}
		want.end = end
		if alone {
			d.ranged = true
		}
	case http.StatusOK:
		if !alone {
			return temporaryError{errors.New("the server ignores the range that it is asked for")}
		}
		want = span{0, d.file.Size}
	default:
		err := d.client.refused(resp, d.info.Repo, d.info.Revision)
		if !d.client.fromHub(resp) && resp.StatusCode < 500 {
			return temporaryError{err} // where it leads to is only valid for a while
		}
		if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
			return &changedError{"size", "smaller", strconv.FormatInt(d.file.Size, 10)}
		}
		return err
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return temporaryError{fmt.Errorf("the server sends it in the encoding %.20q, which was not asked for", e)}
	}
	if n := resp.ContentLength; n >= 0 && n != want.end-want.begin {
		if want.begin == 0 && want.end == d.file.Size {
			return &changedError{"size", strconv.FormatInt(n, 10), strconv.FormatInt(d.file.Size, 10)}
		}
		return temporaryError{fmt.Errorf("the server sends %d bytes, expected %d", n, want.end-want.begin)}
	}
	return d.receive(ctx, resp.Body, want, cancel)
}

// errStalled ends a connection that brings nothing.
var errStalled = errors.New("the connection brings nothing any more")

// receive writes what comes to its place, and no byte that is not wanted.
func (d *download) receive(ctx context.Context, body io.Reader, want span, cancel context.CancelCauseFunc) error {
	stalled := time.AfterFunc(d.client.stall, func() { cancel(errStalled) })
	defer stalled.Stop()
	buffer := make([]byte, 128<<10)
	for at := want.begin; at < want.end; {
		n, err := body.Read(buffer[:min(int64(len(buffer)), want.end-at)])
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
		if err != nil && at < want.end {
			if context.Cause(ctx) == errStalled {
				err = errStalled
			}
			return temporaryError{fmt.Errorf("the connection was cut: %w", oserr.NoEOF(err))}
		}
	}
	return nil
}

var contentRange = regexp.MustCompile(`^bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)$`)

// parseContentRange reads the header of the answer to a request for a range: the
// span that comes and the file's size, -1 where that is not told.
func parseContentRange(header string) (begin, end, size int64, err error) {
	m := contentRange.FindStringSubmatch(header)
	if m == nil {
		return 0, 0, 0, fmt.Errorf("the server does not say which bytes it sends: Content-Range is %.80q", header)
	}
	// the numbers have few enough digits
	begin, _ = strconv.ParseInt(m[1], 10, 64)
	end, _ = strconv.ParseInt(m[2], 10, 64)
	end++
	size = -1
	if m[3] != "*" {
		size, _ = strconv.ParseInt(m[3], 10, 64)
	}
	if begin >= end || size >= 0 && end > size {
		return 0, 0, 0, fmt.Errorf("the server sends bytes that there are not: Content-Range is %.80q", header)
	}
	return begin, end, size, nil
}

// readerWith ends with the context.
func readerWith(ctx context.Context, r io.Reader) io.Reader { return contextReader{ctx, r} }

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(b []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(b)
}

// sizeIs says whether there is a file of that size, links followed.
func sizeIs(path string, size int64) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() == size
}
