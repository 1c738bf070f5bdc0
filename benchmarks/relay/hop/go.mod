module fairlead/benchmarks/hop

go 1.21
