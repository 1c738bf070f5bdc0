// A forwarding hop for benchmarks that passes only whole requests and whole answers, and loses some of them when it is told to.
//
// `hop serve GATEWAY` listens on a free port of loopback, prints it, and forwards to the HTTP server at GATEWAY (host:port). It refuses upgrades with
// 501, so that no WebSocket passes. It takes a command a line and prints a line of JSON for each:
//
//	lose REQUESTS ANSWERS    from now on, lose such shares of them (0 to 1): every other loss cuts the connection, the others leave it without an answer
//	count                    {"requests", "lost", "up_bytes", "down_bytes"}: whole connections of clients, heads included
//
// `hop carry SECONDS` prints {"up_mb_per_s", "down_mb_per_s"}: what it forwards of bodies of 1 MiB, three at once, with their client and their server
// on the same cores.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	body    = 1 << 20
	buffer  = 64 << 10
	atOnce  = 3
	kept    = 64
	upgrade = "Upgrade"
)

type hop struct {
	gateway  string
	client   *http.Client
	requests atomic.Int64
	lost     atomic.Int64
	up       atomic.Int64
	down     atomic.Int64

	lock  sync.Mutex
	dice  *rand.Rand
	loses [2]float64
}

func newHop(gateway string) *hop {
	transport := &http.Transport{
		MaxIdleConnsPerHost: kept,
		DisableCompression:  true,
		ReadBufferSize:      buffer,
		WriteBufferSize:     buffer,
	}
	return &hop{gateway: gateway, client: &http.Client{Transport: transport}, dice: rand.New(rand.NewSource(1))}
}

// counted counts what a client's connection carries.
type counted struct {
	net.Conn
	hop *hop
}

func (c counted) Read(into []byte) (int, error) {
	count, err := c.Conn.Read(into)
	c.hop.up.Add(int64(count))
	return count, err
}

func (c counted) Write(from []byte) (int, error) {
	count, err := c.Conn.Write(from)
	c.hop.down.Add(int64(count))
	return count, err
}

type counting struct {
	net.Listener
	hop *hop
}

func (l counting) Accept() (net.Conn, error) {
	connection, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return counted{connection, l.hop}, nil
}

// loss says whether something is lost now.
func (h *hop) loss(which int) bool {
	h.lock.Lock()
	defer h.lock.Unlock()
	return h.dice.Float64() < h.loses[which]
}

// lose ends an exchange without an answer, as cuts and silence by turns.
func (h *hop) lose(request *http.Request) {
	if h.lost.Add(1)%2 == 0 {
		<-request.Context().Done()
	}
	panic(http.ErrAbortHandler)
}

func whole(from io.Reader, length int64) ([]byte, error) {
	if length < 0 {
		return io.ReadAll(from)
	}
	content := make([]byte, length)
	_, err := io.ReadFull(from, content)
	return content, err
}

func (h *hop) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	h.requests.Add(1)
	if request.Header.Get(upgrade) != "" {
		answer.WriteHeader(http.StatusNotImplemented)
		return
	}
	content, err := whole(request.Body, request.ContentLength)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if h.loss(0) {
		h.lose(request)
	}
	onward, err := http.NewRequestWithContext(
		request.Context(), request.Method, "http://"+h.gateway+request.URL.RequestURI(), bytes.NewReader(content))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	onward.Header = request.Header.Clone()
	found, err := h.client.Do(onward)
	if err != nil {
		if request.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
		answer.WriteHeader(http.StatusBadGateway)
		return
	}
	content, err = whole(found.Body, found.ContentLength)
	found.Body.Close()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if h.loss(1) {
		h.lose(request)
	}
	for name, values := range found.Header {
		answer.Header()[name] = values
	}
	answer.Header().Set("Content-Length", strconv.Itoa(len(content)))
	answer.WriteHeader(found.StatusCode)
	answer.Write(content)
}

func (h *hop) start() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	server := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(counting{listener, h})
	return listener.Addr().(*net.TCPAddr).Port, nil
}

func (h *hop) command(words []string) (map[string]any, error) {
	switch {
	case len(words) == 3 && words[0] == "lose":
		h.lock.Lock()
		defer h.lock.Unlock()
		for which, word := range words[1:] {
			share, err := strconv.ParseFloat(word, 64)
			if err != nil {
				return nil, err
			}
			h.loses[which] = share
		}
	case len(words) == 1 && words[0] == "count":
	default:
		return nil, errors.New("no such command")
	}
	return map[string]any{
		"requests": h.requests.Load(), "lost": h.lost.Load(), "up_bytes": h.up.Load(), "down_bytes": h.down.Load(),
	}, nil
}

func tell(found map[string]any, err error) {
	if err != nil {
		found = map[string]any{"error": err.Error()}
	}
	text, _ := json.Marshal(found)
	fmt.Println(string(text))
}

func serve(gateway string) error {
	it := newHop(gateway)
	port, err := it.start()
	if err != nil {
		return err
	}
	fmt.Println(port)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		tell(it.command(strings.Fields(lines.Text())))
	}
	return lines.Err()
}

// carried posts bodies until the time is over and returns how many MB a second went one way.
func carried(url string, size int, wanted string, seconds float64) (float64, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: atOnce, ReadBufferSize: buffer, WriteBufferSize: buffer}}
	var group sync.WaitGroup
	var total atomic.Int64
	failures := make(chan error, atOnce)
	begun := time.Now()
	until := begun.Add(time.Duration(seconds * float64(time.Second)))
	for number := 0; number < atOnce; number++ {
		group.Add(1)
		go func() {
			defer group.Done()
			content := make([]byte, size)
			for time.Now().Before(until) {
				answer, err := client.Post(url+"/?"+wanted, "application/octet-stream", bytes.NewReader(content))
				if err != nil {
					failures <- err
					return
				}
				count, err := io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				if err != nil || answer.StatusCode != http.StatusOK {
					failures <- errors.New("a body was not passed on")
					return
				}
				total.Add(max(count, int64(size)))
			}
		}()
	}
	group.Wait()
	select {
	case err := <-failures:
		return 0, err
	default:
		return float64(total.Load()) / time.Since(begun).Seconds() / 1e6, nil
	}
}

func carry(seconds float64) error {
	answers := make([]byte, body)
	sink, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go http.Serve(sink, http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		io.Copy(io.Discard, request.Body)
		count, _ := strconv.Atoi(request.URL.RawQuery)
		answer.Header().Set("Content-Length", strconv.Itoa(count))
		answer.Write(answers[:count])
	}))
	port, err := newHop(sink.Addr().String()).start()
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	up, err := carried(url, body, "1", seconds)
	if err != nil {
		return err
	}
	down, err := carried(url, 1, strconv.Itoa(body), seconds)
	tell(map[string]any{"up_mb_per_s": up, "down_mb_per_s": down}, err)
	return err
}

func run(words []string) error {
	switch {
	case len(words) == 2 && words[0] == "serve":
		return serve(words[1])
	case len(words) == 2 && words[0] == "carry":
		seconds, err := strconv.ParseFloat(words[1], 64)
		if err != nil {
			return err
		}
		return carry(seconds)
	}
	return errors.New("hop serve GATEWAY | hop carry SECONDS")
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
