//go:build !oldest

package main

import (
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

func laterConsumerOptions(given options) []consumer.Option { return newestConsumerOptions(given) }
