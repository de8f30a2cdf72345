//go:build !oldest && !newest

package main

import (
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func newestProducerOptions(options) []producer.Option { return nil }

func newestConsumerOptions(options) []consumer.Option { return nil }
