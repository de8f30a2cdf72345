//go:build !oldest

package main

import (
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// laterProducerOptions returns options that came after 2.1.0.
func laterProducerOptions(given options) []producer.Option {
	var made []producer.Option
	if unit, found := given["unit"]; found {
		made = append(made, producer.WithUnitName(unit))
	}
	return append(made, newestProducerOptions(given)...)
}

// laterConsumerOptions returns options that came after 2.1.0.
func laterConsumerOptions(given options) []consumer.Option {
	var made []consumer.Option
	if unit, found := given["unit"]; found {
		made = append(made, consumer.WithUnitName(unit))
	}
	if moment, found := given["timestamp"]; found {
		made = append(made, consumer.WithConsumeTimestamp(moment))
	}
	if count, found := given["threshold"]; found {
		made = append(made, consumer.WithPullThresholdForQueue(int64(options{"n": count}.number("n", 0))))
	}
	if seconds, found := given["consume-timeout"]; found {
		made = append(made, consumer.WithConsumeTimeout(time.Duration(options{"n": seconds}.number("n", 0))*time.Second))
	}
	return append(made, newestConsumerOptions(given)...)
}

func laterCommand(client rocketmq.PushConsumer, command string) {
	switch command {
	case "suspend":
		client.Suspend()
	case "resume":
		client.Resume()
	case "lag":
		event("lag", map[string]interface{}{"of": client.GetOffsetDiffMap()})
	default:
		panic("no command " + command)
	}
}
