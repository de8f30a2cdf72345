//go:build newest

package main

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func init() {
	programs["assign"] = assign
}

func newestProducerOptions(given options) []producer.Option {
	return []producer.Option{producer.WithTls(given.is("tls"))}
}

func newestConsumerOptions(given options) []consumer.Option {
	return []consumer.Option{consumer.WithTls(given.is("tls"))}
}

// assign assigns all queues of a topic, begins each at offset seek, and polls until the end of its standard input.
func assign(given options) {
	client, err := rocketmq.NewPullConsumer(consumerOptions(given)...)
	check(err)
	check(client.Assign(given["topic"], nil))
	check(client.Start())
	queues, err := client.GetTopicRouteInfo(given["topic"])
	check(err)
	for _, queue := range queues {
		client.SeekOffset(queue, int64(given.number("seek", 0)))
	}
	check(client.Assign(given["topic"], queues))
	event("started", map[string]interface{}{"queues": len(queues)})
	go func() {
		for {
			request, err := client.Poll(context.Background(), time.Second)
			if err != nil {
				continue
			}
			for _, message := range request.GetMsgList() {
				event("done", messageValues(message))
			}
			client.ACK(context.Background(), request, consumer.ConsumeSuccess)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = client.Shutdown()
	event("finished", map[string]interface{}{})
}
