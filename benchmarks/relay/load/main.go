// Loads a TCP tunnel and checks what it moves: `load serve HOST` is the target behind the tunnel, `load drive` the client before it.
//
// `serve` listens on a free port of an address of this machine, prints it, and ends with its input. `drive` takes a command a line and prints its
// result as a line of JSON, {"error": ...} when anything that came was not what was sent:
//
//	up HOST:PORT CONNECTIONS BYTES      each connection sends BYTES and hears their CRC; {"seconds", "stall_ms"}
//	down HOST:PORT CONNECTIONS BYTES    each connection asks for BYTES and their CRC; {"seconds", "stall_ms"}
//	open HOST:PORT WORKERS SECONDS      connect, one byte each way, close; {"count", "seconds", "p50_us"}
//	ping HOST:PORT COUNT                64 bytes each way on one connection; {"p50_us", "p99_us"}
//	idle HOST:PORT CONNECTIONS          opens them, one byte each way, and keeps them until the next line; {"count"}
//
// `stall_ms` is the longest time in which a receiver got nothing, from when it was there. HOST:PORT may be socks5:HOST:PORT,HOST:PORT: a server of
// SOCKS5 and what it is to lead to.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	pingBytes = 64
	patience  = 120 * time.Second
	opUp      = 'U'
	opDown    = 'D'
	opEcho    = 'E'
)

func answer(connection net.Conn) {
	defer connection.Close()
	var head [9]byte
	if _, err := io.ReadFull(connection, head[:1]); err != nil {
		return
	}
	if head[0] == opEcho {
		buffer := make([]byte, 4096)
		for {
			count, err := connection.Read(buffer)
			if _, failed := connection.Write(buffer[:count]); failed != nil || err != nil {
				return
			}
		}
	}
	if _, err := io.ReadFull(connection, head[1:]); err != nil {
		return
	}
	size := int64(binary.BigEndian.Uint64(head[1:]))
	var sum uint32
	var stall time.Duration
	var err error
	if head[0] == opUp {
		sum, stall, err = take(connection, size)
	} else {
		sum, err = send(connection, size)
	}
	if err == nil {
		trailer := binary.BigEndian.AppendUint32(nil, sum)
		connection.Write(binary.BigEndian.AppendUint64(trailer, uint64(stall)))
	}
}

func serve(host string) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go ended()
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go answer(connection)
	}
}

// move sends or fetches size bytes, and returns the longest time that their receiver waited.
func move(address string, op byte, size int64) (time.Duration, error) {
	connection, err := dial(address, binary.BigEndian.AppendUint64([]byte{op}, uint64(size))...)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	var ours uint32
	var stall time.Duration
	if op == opUp {
		ours, err = send(connection, size)
	} else {
		ours, stall, err = take(connection, size)
	}
	if err != nil {
		return 0, err
	}
	var trailer [12]byte
	if _, err = io.ReadFull(connection, trailer[:]); err != nil {
		return 0, err
	}
	if binary.BigEndian.Uint32(trailer[:4]) != ours {
		return 0, errors.New("what arrived is not what was sent")
	}
	return max(stall, time.Duration(binary.BigEndian.Uint64(trailer[4:]))), nil
}

// together runs work on so many goroutines and returns their first error.
func together(count int, work func() error) error {
	var group sync.WaitGroup
	failures := make(chan error, count)
	for range make([]struct{}, count) {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := work(); err != nil {
				failures <- err
			}
		}()
	}
	group.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

func microseconds(spent []time.Duration, share float64) float64 {
	sort.Slice(spent, func(i, j int) bool { return spent[i] < spent[j] })
	return float64(spent[int(share*float64(len(spent)-1))].Nanoseconds()) / 1000
}

type result map[string]any

func opens(address string, workers int, seconds float64) (result, error) {
	var lock sync.Mutex
	var spent []time.Duration
	begun := time.Now()
	until := begun.Add(time.Duration(seconds * float64(time.Second)))
	err := together(workers, func() error {
		for time.Now().Before(until) {
			start := time.Now()
			if err := open(address); err != nil {
				return err
			}
			lock.Lock()
			spent = append(spent, time.Since(start))
			lock.Unlock()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return result{"count": len(spent), "seconds": time.Since(begun).Seconds(), "p50_us": microseconds(spent, 0.5)}, nil
}

func ping(address string, count int) (result, error) {
	connection, err := dial(address, opEcho)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	spent := make([]time.Duration, 0, count)
	sent, got := make([]byte, pingBytes), make([]byte, pingBytes)
	for number := 0; number < count; number++ {
		binary.BigEndian.PutUint64(sent, uint64(number))
		start := time.Now()
		if err := exchange(connection, sent, got); err != nil {
			return nil, err
		}
		spent = append(spent, time.Since(start))
	}
	return result{"p50_us": microseconds(spent, 0.5), "p99_us": microseconds(spent, 0.99)}, nil
}

func moved(address string, op byte, connections int, size int64) (result, error) {
	var lock sync.Mutex
	var longest time.Duration
	start := time.Now()
	err := together(connections, func() error {
		stall, err := move(address, op, size)
		lock.Lock()
		longest = max(longest, stall)
		lock.Unlock()
		return err
	})
	return result{"seconds": time.Since(start).Seconds(), "stall_ms": longest.Seconds() * 1000}, err
}

func idle(address string, count int, lines *bufio.Scanner) (result, error) {
	held := make([]net.Conn, 0, count)
	defer func() {
		for _, each := range held {
			each.Close()
		}
	}()
	for len(held) < count {
		connection, err := dial(address, opEcho)
		if err != nil {
			return nil, err
		}
		held = append(held, connection)
		if err := exchange(connection, []byte{7}, make([]byte, 1)); err != nil {
			return nil, err
		}
	}
	tell(result{"count": len(held)}, nil)
	lines.Scan()
	return result{"count": len(held)}, nil
}

func do(words []string, lines *bufio.Scanner) (result, error) {
	numbers := make([]float64, 0, 2)
	for _, word := range words[2:] {
		number, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, number)
	}
	switch verb, address := words[0], words[1]; {
	case verb == "up" && len(numbers) == 2:
		return moved(address, opUp, int(numbers[0]), int64(numbers[1]))
	case verb == "down" && len(numbers) == 2:
		return moved(address, opDown, int(numbers[0]), int64(numbers[1]))
	case verb == "open" && len(numbers) == 2:
		return opens(address, int(numbers[0]), numbers[1])
	case verb == "ping" && len(numbers) == 1:
		return ping(address, int(numbers[0]))
	case verb == "idle" && len(numbers) == 1:
		return idle(address, int(numbers[0]), lines)
	}
	return nil, errors.New("no such command")
}

func tell(found result, err error) {
	if err != nil {
		found = result{"error": err.Error()}
	}
	text, _ := json.Marshal(found)
	fmt.Println(string(text))
}

// ended ends the program with its input.
func ended() {
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func drive() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 3 {
			tell(nil, errors.New("a command has at least three words"))
			continue
		}
		tell(do(words, lines))
	}
}

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		fmt.Fprintln(os.Stderr, serve(os.Args[2]))
		os.Exit(1)
	case len(os.Args) == 2 && os.Args[1] == "drive":
		drive()
	default:
		fmt.Fprintln(os.Stderr, "load serve HOST | load drive")
		os.Exit(2)
	}
}
