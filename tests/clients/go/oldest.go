//go:build oldest

package main

import (
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func laterProducerOptions(options) []producer.Option { return nil }

func laterConsumerOptions(options) []consumer.Option { return nil }
