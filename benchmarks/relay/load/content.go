package main

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"math/rand"
	"net"
	"time"
)

const block = 256 << 10

// The first bytes of an upload leave in writes of these sizes: what reverses early writes is found out.
var early = []int{1, 2, 3, 5, 8, 13, 21, 34}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A first number whose bytes all differ: early bytes that change places are seen.
const firstNumber = 0x0123456789abcdef

// content is what is sent: random blocks, each of which begins with its number.
type content struct {
	random []byte
	number uint64
}

func newContent() *content {
	random := make([]byte, 16*block)
	rand.New(rand.NewSource(1)).Read(random)
	return &content{random: random, number: firstNumber}
}

func (c *content) next() []byte {
	at := int(c.number%16) * block
	piece := c.random[at : at+block]
	binary.BigEndian.PutUint64(piece, c.number)
	c.number++
	return piece
}

// send writes size bytes and returns their CRC; the first ones in small writes.
func send(to net.Conn, size int64) (uint32, error) {
	from, sum, left := newContent(), uint32(0), size
	for left > 0 {
		piece := from.next()
		if int64(len(piece)) > left {
			piece = piece[:left]
		}
		left -= int64(len(piece))
		sum = crc32.Update(sum, castagnoli, piece)
		if from.number == firstNumber+1 {
			for _, most := range early {
				if most > len(piece) {
					break
				}
				if _, err := to.Write(piece[:most]); err != nil {
					return 0, err
				}
				piece = piece[most:]
			}
		}
		if _, err := to.Write(piece); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// take reads size bytes and returns their CRC, and the longest time that it waited for more of them.
func take(from io.Reader, size int64) (uint32, time.Duration, error) {
	buffer, sum := make([]byte, block), uint32(0)
	var stall time.Duration
	for size > 0 {
		begun := time.Now()
		most := int64(len(buffer))
		if most > size {
			most = size
		}
		count, err := from.Read(buffer[:most])
		stall = max(stall, time.Since(begun))
		sum = crc32.Update(sum, castagnoli, buffer[:count])
		size -= int64(count)
		if err != nil && size > 0 {
			return 0, 0, err
		}
	}
	return sum, stall, nil
}
