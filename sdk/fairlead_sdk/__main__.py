"""`python -m fairlead_sdk`: the same as `fairlead`."""

from fairlead_sdk.cli.app import main

if __name__ == "__main__":
    main()
