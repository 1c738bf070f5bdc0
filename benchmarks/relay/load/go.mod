module fairlead/benchmarks/load

go 1.21
