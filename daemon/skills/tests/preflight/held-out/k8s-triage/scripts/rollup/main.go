package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/api/resource"
)

type list struct {
	Items []struct {
		Metadata struct{ Namespace string } `json:"metadata"`
		Spec     struct {
			Containers []struct {
				Resources struct{ Requests, Limits map[string]string } `json:"resources"`
			} `json:"containers"`
		} `json:"spec"`
	} `json:"items"`
}

func main() {
	by := flag.String("by", "namespace", "grouping")
	flag.Parse()
	var l list
	if err := json.NewDecoder(os.Stdin).Decode(&l); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	sum := map[string]*resource.Quantity{}
	for _, p := range l.Items {
		for _, c := range p.Spec.Containers {
			q := resource.MustParse(c.Resources.Requests["cpu"])
			if sum[p.Metadata.Namespace] == nil {
				sum[p.Metadata.Namespace] = &resource.Quantity{}
			}
			sum[p.Metadata.Namespace].Add(q)
		}
	}
	for k, v := range sum {
		fmt.Println(*by, k, v.String())
	}
}
