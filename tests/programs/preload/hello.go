// Goroutines, a timer, a child process, an environment variable, and a panic that is recovered.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

func recovered() (text string) {
	defer func() { text = fmt.Sprint(recover()) }()
	var none *int
	return fmt.Sprint(*none)
}

func main() {
	var wait sync.WaitGroup
	sums := make([]int, 16)
	for i := range sums {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			for j := 0; j < 1000; j++ {
				sums[i] += i * len(make([]byte, j))
				if j%100 == 0 {
					runtime.Gosched()
				}
			}
		}(i)
	}
	wait.Wait()
	runtime.GC()
	<-time.After(10 * time.Millisecond)
	output, err := exec.Command("sh", "-c", "echo child; exit 3").CombinedOutput()
	fmt.Printf("%v %q %v\n%s\n", sums, output, err, recovered())
	os.Exit(7)
}
