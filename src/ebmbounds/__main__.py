from ebmbounds.cli import main

main()
