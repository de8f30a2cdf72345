// Check a bundle for the Operator Lifecycle Manager with the rules of operator-sdk: `olm FOLDER`.
//
// It prints one line for each error and each warning, and ends with 1 if there is any.
package main

import (
	"fmt"
	"os"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: olm FOLDER")
		os.Exit(2)
	}
	bundle, err := manifests.GetBundleFromDir(os.Args[1])
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s is no bundle: %v\n", os.Args[1], err)
		os.Exit(2)
	}
	validators := validation.DefaultBundleValidators.WithValidators(
		validation.GoodPracticesValidator,
		validation.OperatorHubV2Validator,
		validation.StandardCapabilitiesValidator,
		validation.StandardCategoriesValidator,
	)
	code := 0
	for _, result := range validators.Validate(bundle.ObjectsToValidate()...) {
		for _, found := range append(result.Errors, result.Warnings...) {
			fmt.Println(found.Error())
			code = 1
		}
	}
	os.Exit(code)
}
